"""Learners that lie to a broker."""

import time

import pytest

from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import Outcome
from headrace.broker.weights.blobs import Blob
from tests.broker.liars.talk import FAR, B, Broker, L, M, publish, works


def test_a_tag_named_twice_is_one_lease(honest: Broker) -> None:
    tag = honest.tags()[0]
    honest.hears(L, messages.Done(50, 1, 8, ((tag, tag + 1), (tag, tag + 1), (tag, tag + 3))))
    assert honest.state.outcomes[Outcome.TRAINED] == 3
    honest.hears(L, messages.Nack(50, ((tag, tag + 3), (tag, tag + 1)), Outcome.REJECTED, ""))
    assert honest.state.outcomes[Outcome.REJECTED] == 0


@pytest.mark.parametrize("tag", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_tag_at_the_end_of_numbers_leaves_room_for_ours(honest: Broker, tag: int) -> None:
    honest.learner(M, 51, rank=1, world=2, held=((tag, 77, 0, 0),))
    works(honest, honest.tags()[:3])
    honest.unrolls([3])
    (deliver,) = honest.told(messages.Deliver)
    assert deliver.tag < 2000


@pytest.mark.parametrize("kind", ["done", "ping", "hello", "bye"])
def test_one_that_was_given_nothing_changes_nothing(honest: Broker, kind: str) -> None:
    """It knows all tags, and says what it likes about them, about versions and about the end."""
    honest.learner(M, 51, rank=1, world=2, want=0)
    everything = ((0, 1 << 62),)
    for tags in (everything, everything * 100):
        match kind:
            case "done":
                honest.hears(M, messages.Done(51, FAR, 1 << 52, tags))
                honest.hears(M, messages.Nack(51, tags, Outcome.REJECTED, ""))
                honest.hears(M, messages.Nack(51, tags, Outcome.DUPLICATE, ""))
                honest.hears(M, messages.Nack(51, tags, Outcome.ABANDONED, ""))
            case "ping":
                honest.hears(M, messages.LearnerPing(51, FAR, 0, 1 << 62, tags, {}))
                honest.hears(M, messages.LearnerPing(51, FAR, 0, 1 << 62, (), {}))
            case "hello":
                honest.learner(M, 51, rank=1, world=2, want=0, version=FAR)
            case "bye":
                honest.hears(M, messages.Done(50, FAR, 0, tags))  # as the honest one
                honest.hears(M, messages.Bye(50, True, "everybody go home"))
    assert len(honest.tags()) == 3
    assert honest.state.outcomes.total() == 0
    assert honest.state.credit.version == 0
    assert not honest.ledger.run_complete
    works(honest, honest.tags())


def test_wide_ranges_cost_no_more_than_the_leases_there_are(honest: Broker) -> None:
    began = time.monotonic()
    for _ in range(5):
        honest.hears(
            L, messages.Done(50, 0, 0, tuple((n << 40, (n << 40) + 65536) for n in range(1, 200)))
        )
        honest.hears(
            L, messages.LearnerPing(50, 0, 0, -1, tuple((n, n + 65536) for n in range(200)), {})
        )
    assert time.monotonic() - began < 1.0
    assert len(honest.tags()) == 3


def test_a_fenced_rank_ends_nothing(honest: Broker) -> None:
    honest.learner(M, 51, take_over=True)  # the same rank, begun again
    honest.hears(L, messages.Bye(50, True, "done"))
    assert honest.told(messages.Bye) == []
    assert not honest.ledger.run_complete


def test_the_version_rises_with_what_a_rank_was_given(honest: Broker) -> None:
    honest.hears(L, messages.LearnerPing(50, FAR, 0, -1, (), {}))
    honest.hears(L, messages.Done(50, FAR, 0, ()))
    assert honest.state.credit.version <= 100  # some DONEs may have been lost
    rank_1 = Broker()
    rank_1.sampler()
    rank_1.learner(world=2, version=500)
    rank_1.learner(M, 51, rank=1, world=2, version=500)
    rank_1.pump()
    rank_1.unrolls([0, 1, 2, 3], version_min=500, version_max=500)
    rank_1.pump()
    tags = list(rank_1.state.leases.sessions[1].leases)
    assert tags
    rank_1.hears(M, messages.Done(51, 501, 9, tuple((tag, tag + 1) for tag in tags)))
    assert rank_1.state.credit.version == 501  # at once, whatever rank 0 has said
    rank_1.hears(M, messages.Done(51, FAR, 9, ()))
    assert rank_1.state.credit.version == 501


def test_a_rank_that_comes_before_the_first_decides_no_version() -> None:
    one = Broker()
    one.learner(M, 51, rank=1, world=2, version=FAR)
    one.learner(L, 50, rank=0, world=2, version=500)
    one.hears(M, messages.Done(51, FAR, 0, ()))
    (welcome,) = [m for route, m in one.pump() if route == L and isinstance(m, messages.Welcome)]
    assert welcome.version == 500
    assert one.state.credit.version == 500
    assert one.ledger.versions.rolled_back == 0


@pytest.mark.parametrize(("rank", "world"), [(-1, 1), (1, 1), (5, 1 << 30), (0, 1 << 30), (0, 0)])
def test_ranks_that_no_batch_has(rank: int, world: int) -> None:
    one = Broker()
    one.learner(rank=rank, world=world)
    ((_, refuse),) = one.pump()
    assert isinstance(refuse, messages.Refuse)
    assert refuse.code == messages.Refusal.RANK


def test_another_rank_does_not_send_the_samplers_home(honest: Broker) -> None:
    honest.learner(M, 51, rank=1, world=2, spaces="of something else")
    ((route, refuse),) = honest.pump()
    assert (route, type(refuse)) == (M, messages.Refuse)
    works(honest, honest.tags())


def test_weights_from_the_future_do_not_stop_the_real_ones(honest: Broker) -> None:
    honest.learner(M, 51, rank=1, world=2, want=0)
    publish(honest, L, FAR)
    publish(honest, M, 1, b"from a rank that publishes none")
    assert honest.server.weights.fetch.version == -1
    publish(honest, L, 1)
    assert honest.server.weights.fetch.version == 1
    honest.hears(L, Blob.of(2, "layout", b"two").announce)
    honest.hears(M, messages.Chunk(2, 0), b"six")  # of what the other announced
    assert honest.server.weights.fetch.refused == 0


def test_nobody_trained_what_was_not_started(honest: Broker) -> None:
    """Said of a sampler that is here, and of one that comes later."""
    honest.learner(
        M, 51, rank=1, world=2, want=0, trained=((1, 0, ((3, 500),)), (2, 0, ((0, 99),)))
    )
    limit = honest.state.actors[1].streams[0].limit
    works(honest, honest.tags())
    honest.sampler(B, 2)
    honest.pump()
    assert honest.state.actors[2].streams[0].limit <= 4  # nor is there credit for it
    trained = honest.state.outcomes[Outcome.TRAINED]
    honest.unrolls(range(0, 1), route=B, inc=2)
    assert honest.told(messages.Ack) == []
    assert honest.state.outcomes[Outcome.TRAINED] == trained
    assert all(seq < limit for seq in honest.state.actors[1].streams[0].settled)
