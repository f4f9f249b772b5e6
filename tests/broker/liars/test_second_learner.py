"""A second learner of the same run: it waits, is refused, or takes the place of the first."""

from typing import Any

import pytest

from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import Outcome, Refusal
from tests.broker.liars.talk import B, Broker, L, M, W, publish, works


def beats(one: Broker, route: bytes = L, inc: int = 50) -> None:
    one.hears(route, messages.LearnerPing(inc, 0, 8, -1, (), {}))


def said(one: Broker, route: bytes) -> list[Any]:
    """What a newcomer was answered."""
    answers = (messages.Welcome, messages.Refuse)
    return [message for to, message in one.pump() if to == route and isinstance(message, answers)]


def refusal(one: Broker, route: bytes = M) -> messages.Refuse:
    (refuse,) = said(one, route)
    assert isinstance(refuse, messages.Refuse)
    return refuse


def first(version: int = 0) -> Broker:
    """A learner of its own group, at work."""
    one = Broker()
    one.sampler()
    one.learner(group=50, version=version)
    one.pump()
    one.unrolls([0, 1, 2], version_min=version, version_max=version)
    one.pump()
    return one


def second(one: Broker, **other: Any) -> None:
    one.learner(M, 51, **{"group": 51, **other})


def test_one_that_lives_keeps_its_place() -> None:
    one = first()
    tags = one.tags()
    for _ in range(2):  # at once nobody knows whether the first one lives
        second(one)
        assert refusal(one).code == Refusal.WAIT
        Broker.now += 0.5
    Broker.now += 1.0
    beats(one)
    second(one)
    refuse = refusal(one)
    assert refuse.code == Refusal.TAKEN
    assert "l50 from 10.0.0.7 (rank 0 of 1, here since " in refuse.text
    assert "--take-over" in refuse.text
    assert one.tags() == tags
    assert one.server.roster.route_of(51) == b""
    works(one, tags)


def test_what_it_said_before_is_no_sign_of_life() -> None:
    """It was killed while the broker was busy: its beats are read after the newcomer's HELLO."""
    one = first()
    second(one)
    assert refusal(one).code == Refusal.WAIT
    Broker.now += 0.01
    beats(one)
    second(one)
    assert refusal(one).code == Refusal.WAIT  # its connection is open still, as far as one knows
    one.closed.add(L)
    for _ in range(2):
        Broker.now += 1.0
        second(one)
        assert refusal(one).code == Refusal.WAIT
    Broker.now += 0.1
    second(one)
    assert isinstance(said(one, M)[-1], messages.Welcome)


def test_one_that_was_killed_is_replaced_after_two_beats() -> None:
    one = first()
    one.closed.add(L)
    second(one)
    assert refusal(one).code == Refusal.WAIT
    Broker.now += 2.1
    second(one)
    told = [message for to, message in one.pump() if to == M]
    assert isinstance(told[0], messages.Welcome)
    delivers = [message for message in told if isinstance(message, messages.Deliver)]
    assert [deliver.attempt for deliver in delivers] == [2, 2, 2]  # they may have killed it
    assert [s.inc for s in one.state.leases.sessions.values()] == [51]
    assert one.server.roster.route_of(50) == b""


def test_one_whose_host_vanished_is_replaced_after_a_lease() -> None:
    """Nobody closed its connection."""
    one = first()
    for _ in range(9):
        Broker.now += 1.0
        second(one)
        refuse = refusal(one)
        assert refuse.code == Refusal.WAIT
        assert "loses its place after 10 s of silence" in refuse.text
    Broker.now += 1.5
    second(one)
    assert isinstance(said(one, M)[0], messages.Welcome)


def test_one_that_sleeps_is_not_dead() -> None:
    one = first()
    Broker.now += 8.0
    second(one)
    assert refusal(one).code == Refusal.WAIT
    Broker.now += 1.5
    beats(one)
    second(one)
    assert refusal(one).code == Refusal.TAKEN


def test_a_reset_line_is_no_death() -> None:
    """It is back from another connection before anybody takes its place."""
    one = first()
    one.closed.add(L)
    second(one)
    assert refusal(one).code == Refusal.WAIT
    Broker.now += 1.2
    one.learner(B, group=50)
    assert isinstance(said(one, B)[0], messages.Welcome)
    second(one)
    assert refusal(one).code == Refusal.TAKEN


def test_who_takes_over_ends_the_first_and_loses_nothing() -> None:
    one = first()
    tags = one.tags()
    second(one, take_over=True)
    told = one.pump()
    (refuse,) = [m for to, m in told if to == L]
    assert isinstance(refuse, messages.Refuse)
    assert refuse.code == Refusal.TAKEN
    assert refuse.text.startswith("l51 from 10.0.0.7 trains this run now, by --take-over")
    delivers = [m for to, m in told if to == M and isinstance(m, messages.Deliver)]
    assert [deliver.attempt for deliver in delivers] == [1, 1, 1]  # it is not their fault

    def later(message: messages.Message) -> list[messages.Message]:
        one.hears(L, message)
        return [m for to, m in one.pump() if to == L]

    everything = ((0, 1 << 62),)
    later(messages.Done(50, 1, 8, tuple((tag, tag + 1) for tag in tags)))
    later(messages.Nack(50, everything, Outcome.REJECTED, ""))
    later(messages.Bye(50, True, "everybody go home"))
    publish(one, L, 1)
    assert one.state.outcomes.total() == 0
    assert one.server.weights.fetch.version == -1
    assert not one.ledger.run_complete
    one.learner(L, group=50)  # as a process does that does not know it yet
    assert refusal(one, L).code == Refusal.WAIT
    Broker.now += 1.1
    beats(one, M, 51)
    one.learner(L, group=50)
    assert refusal(one, L).code == Refusal.TAKEN
    one.hears(M, messages.Done(51, 1, 8, tuple((d.tag, d.tag + 1) for d in delivers)))
    assert one.state.outcomes[Outcome.TRAINED] == 3


def test_ranks_of_two_learners_do_not_mix() -> None:
    one = Broker()
    one.learner(L, 50, rank=0, world=2, group=50)
    one.learner(M, 51, rank=1, world=2, group=50)
    one.pump()
    Broker.now += 1.5
    one.learner(W, 61, rank=1, world=2, group=60)
    assert refusal(one, W).code == Refusal.WAIT
    Broker.now += 1.5
    beats(one, L, 50)
    beats(one, M, 51)
    one.learner(W, 61, rank=1, world=2, group=60)
    assert refusal(one, W).code == Refusal.TAKEN
    one.learner(W, 61, rank=1, world=2, group=60, take_over=True)
    told = one.pump()
    assert {to for to, m in told if isinstance(m, messages.Refuse)} == {L, M}
    assert [s.inc for s in one.state.leases.sessions.values()] == [61]
    one.learner(B, 60, rank=0, world=2, group=60, take_over=True)
    assert sorted(s.inc for s in one.state.leases.sessions.values()) == [60, 61]


def test_the_rest_of_a_learner_is_waited_for() -> None:
    """Its rank 0 is dead, so it trains no more: whoever comes is not sent away for good."""
    one = Broker()
    one.learner(L, 50, rank=0, world=2, group=50)
    one.learner(M, 51, rank=1, world=2, group=50)
    one.pump()
    one.closed.add(L)
    for _ in range(5):
        Broker.now += 1.1
        beats(one, M, 51)
        one.learner(W, 60, rank=0, world=2, group=60)
        refuse = refusal(one, W)
        assert refuse.code == Refusal.WAIT
    assert "l51" in refuse.text
    one.hears(M, messages.Bye(51, False, "the learner failed"))
    one.learner(W, 60, rank=0, world=2, group=60)
    assert isinstance(said(one, W)[-1], messages.Welcome)


def test_new_weights_do_not_replace_trained_ones_unasked() -> None:
    one = first(version=812)
    one.hears(L, messages.LearnerPing(50, 812, 8, -1, (), {"trained_steps": 51200.0}))
    one.hears(L, messages.Bye(50, False, "stopped"))
    one.pump()
    second(one)
    refuse = refusal(one)
    assert refuse.code == Refusal.FORGETS
    assert "at version 812 (51200 steps trained)" in refuse.text
    assert "--resume" in refuse.text
    assert "--fresh" in refuse.text
    assert one.ledger.versions.rolled_back == 0
    second(one, version=700)  # from a checkpoint: it goes on, and what it undid is counted
    assert isinstance(said(one, M)[0], messages.Welcome)
    assert one.ledger.versions.rolled_back == 112 * 4


@pytest.mark.parametrize("rank_1_first", [False, True])
def test_fresh_says_so(rank_1_first: bool) -> None:
    one = first(version=812)
    one.hears(L, messages.Bye(50, False, "stopped"))
    one.pump()
    for rank in (1, 0) if rank_1_first else (0, 1):
        route = (M, W)[rank]
        one.learner(route, 60 + rank, rank=rank, world=2, group=60, fresh=True)
        (welcome,) = said(one, route)
        assert isinstance(welcome, messages.Welcome)
    assert sorted(one.state.leases.sessions) == [0, 1]


def test_a_broker_that_restarted_knows_from_its_samplers() -> None:
    one = Broker()
    for n in range(3):
        one.sampler(b"%d" % n, 1 + n, version=700)
    second(one)
    assert refusal(one).code == Refusal.FORGETS


def test_second_evaluators_and_samplers_are_welcome() -> None:
    one = first()
    for n in range(3):
        one.sampler(b"s%d" % n, 100 + n)
        one.hello(b"e%d" % n, messages.Hello("evaluator", "same", 200 + n, spaces="s"))
    assert not [m for _, m in one.pump() if isinstance(m, messages.Refuse)]
