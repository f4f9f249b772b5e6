"""Evaluators among samplers and learners, over the network of test_ends: they get the weights, and
nobody else notices them. No announcement on the XPUB reaches them here; beats repair that."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.broker.protocol.hello_payload import pack
from headrace.broker.protocol.messages import (
    Buffer,
    Bye,
    Get,
    Message,
    Ping,
    Status,
    Unroll,
    Welcome,
    decode,
    encode,
)
from headrace.broker.transport.link import RefusedError
from headrace.broker.weights.blobs import Blob
from tests.broker.peers import test_ends
from tests.broker.peers.test_ends import (
    BEAT,
    ENDPOINT,
    LEASE,
    SPACES,
    Actor,
    Plan,
    Process,
    World,
    check,
)

begin = test_ends.begin


class Evaluator(Process):
    def __init__(self, world: World, spaces: tuple[str, str] = SPACES) -> None:
        inc = next(world.incs)
        self.end = EvaluatorEnd(ENDPOINT, name=f"e{inc}", inc=inc, context=cast(Any, None))
        super().__init__(world, self.end.link)
        self.end.open(spaces)
        self.taken: list[int] = []

    def turn(self) -> None:
        super().turn()
        awake = self.world.now >= self.wake_at
        blob = self.end.take_blob() if awake else None
        if awake:
            self.end.ask_for_blob()
        if blob is not None:
            # A learner that hears of a higher version calls its weights by that.
            assert int(bytes(blob.body)[1:]) <= blob.announce.version
            self.taken.append(blob.announce.version)
            self.end.weights.acts_with(blob.announce.version, blob.announce.digest)


class Watched(World):
    """With evaluators, who suffer the same faults."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.evaluators = [Evaluator(self)]

    def turn_broker(self) -> None:
        for evaluator in self.evaluators:
            evaluator.turn()
        super().turn_broker()

    def fault(self) -> None:
        super().fault()
        evaluator = self.evaluators[0]
        match self.rng.randrange(3):
            case 0:
                evaluator.disconnect(self.rng.uniform(0.0, 0.3 * LEASE))
            case 1:
                evaluator.wake_at = self.now + self.rng.uniform(0.0, 4 * LEASE)
            case 2:
                evaluator.disconnect(0.0)
                self.evaluators = [Evaluator(self)]

    def kill_broker(self, for_s: float) -> None:
        super().kill_broker(for_s)
        for evaluator in self.evaluators:
            evaluator.wire = None


@pytest.fixture
def watched(begin: Callable[[Plan], World], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(test_ends, "World", Watched)
    return begin


def calm(watched: Callable[[Plan], Watched]) -> Watched:
    world = watched(Plan(seed=1, batch=2, max_lag=0, ranks=1, actors=2, streams=2))
    world.faulty = False
    world.actors = [Actor(world) for _ in range(2)]
    world.go(20.0)
    assert world.group.version > 5
    return world


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_a_storm_with_an_evaluator_leaves_the_books_right(
    block: int, watched: Callable[[Plan], Watched]
) -> None:
    for seed in range(1000 + 6 * block, 1006 + 6 * block):
        world = watched(Plan.of(seed))
        world.tell()
        check(world)
        assert world.evaluators[0].taken[-1] == world.group.version
        assert world.server is not None
        evaluators = {evaluator.end.inc for evaluator in world.evaluators}
        assert not evaluators & world.server.ledger.state.actors.keys()


def test_nobody_waits_for_one_that_sleeps(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    world.evaluators[0].wake_at = world.now + 1000.0
    world.go(test_ends.BEAT)  # what it said before is heard
    assert test_ends.goes_on(world)
    assert world.server is not None
    assert world.server.status()["actors"]["count"] == 2
    # It has been forgotten meanwhile, and is taken up again.
    assert world.server.roster.with_role("evaluator") == []
    world.evaluators[0].wake_at = world.now
    world.go(4 * BEAT)
    world.drain = True
    world.go(2 * LEASE)
    assert world.evaluators[0].taken[-1] == world.group.version


def test_one_that_lags_is_not_counted_among_those_that_do(
    watched: Callable[[Plan], Watched],
) -> None:
    world = calm(watched)
    world.evaluators[0].wake_at = world.now + 1000.0
    world.go(LEASE / 2)
    world.drain = True
    world.go(LEASE)
    assert world.server is not None
    assert len(world.server.roster.with_role("evaluator")) == 1
    assert world.evaluators[0].taken[-1] < world.group.version
    assert world.server.status()["actors"]["behind"] == 0


def test_a_lost_chunk_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    end = EvaluatorEnd(ENDPOINT, name="e", inc=1, context=cast(Any, None))
    asked: list[Message] = []
    monkeypatch.setattr(end.link, "send", lambda frames: asked.append(decode(frames)[0]))
    blob = Blob.of(3, "layout", b"body")
    end.handle(blob.announce, ())
    assert end.weights.fetching
    for _ in range(3):  # since the last beat it has begun, and then it waits for two
        end.beat_frames()
    assert asked == [Get(3, 0, 1), Get(3, 0, 1)]
    chunk, body = blob.first()
    end.handle(chunk, [body])
    taken = end.weights.take()
    assert taken is not None
    assert bytes(taken.body) == b"body"
    assert not end.weights.fetching


class Fetching:
    """An evaluator's end that has taken version 3; the broker answers when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = EvaluatorEnd(ENDPOINT, name="e", inc=1, context=cast(Any, None))
        self.asked: list[int] = []
        monkeypatch.setattr(self.end.link, "send", self._sent)
        self.announce(3)
        self.deliver(3)
        assert self.take() == 3
        self.asked.clear()

    def _sent(self, frames: Sequence[Any]) -> None:
        message = decode(frames)[0]
        if isinstance(message, Get):
            self.asked.append(message.version)

    def announce(self, version: int) -> None:
        self.end.handle(Blob.of(version, "layout", b"body").announce, ())

    def deliver(self, version: int) -> None:
        chunk, body = Blob.of(version, "layout", b"body").first()
        self.end.handle(chunk, [body])

    def take(self) -> int | None:
        blob = self.end.take_blob()
        return None if blob is None else blob.announce.version


def test_between_evaluations_no_weights_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Fetching(monkeypatch)
    for version in (4, 6, 5):
        it.announce(version)
    it.end.beat_frames()
    assert it.asked == []
    assert not it.end.weights.fetching
    it.end.ask_for_blob()
    it.deliver(6)
    it.end.ask_for_blob()
    assert (it.asked, it.take()) == ([6], 6)


def test_at_the_end_of_the_run_the_last_weights_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Fetching(monkeypatch)
    it.announce(4)
    it.end.handle(Bye(2, True, "solved"), ())
    assert (it.asked, it.end.weights.fetching) == ([4], True)
    it.deliver(4)
    assert it.take() == 4
    it.announce(5)  # it came by another way than the farewell
    assert it.asked == [4, 5]


def test_weights_that_were_on_their_way_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Fetching(monkeypatch)
    it.end.ask_for_blob()
    it.announce(4)
    it.end.take_blob()  # nothing is here yet
    it.announce(4)  # beats repeat it
    it.deliver(4)
    it.end.ask_for_blob()
    assert (it.asked, it.take()) == ([4], 4)


def test_older_weights_than_the_newest_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Fetching(monkeypatch)
    it.end.ask_for_blob()
    it.announce(4)
    it.end.take_blob()
    it.deliver(4)
    it.announce(5)
    it.end.ask_for_blob()
    assert (it.asked, it.take()) == ([4, 5], None)


def test_its_scores_reach_whoever_watches(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    world.evaluators[0].end.stats = {"mean": 4.5, "version": 3.0}
    world.go(3 * BEAT)
    assert world.server is not None
    (told,) = world.server.status()["evaluators"]
    assert (told["mean"], told["version"]) == (4.5, 3.0)


def test_who_scores_another_brokers_policy_is_no_evaluator_of_this_run(
    watched: Callable[[Plan], Watched],
) -> None:
    world = calm(watched)
    world.evaluators[0].end.stats = {"episodes": 0.0}
    world.go(3 * BEAT)
    assert world.server is not None
    assert world.server.status()["evaluators"] == []


def test_it_hears_what_the_learner_says_of_itself(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    end = world.evaluators[0].end
    assert (end.trained_steps(10), end.clock()) == (None, None)
    world.group.ranks[0].end.stats = {"t": 40.0, "version": 20.0, "trained_steps": 1000.0}
    world.go(4 * BEAT)
    assert end.trained_steps(20) == 1000
    assert end.trained_steps(22) == 1100
    clock = end.clock()
    assert clock is not None
    assert 40.0 <= clock < 60.0


@pytest.mark.parametrize("said", [None, [], {}, {"learners": 3}, {"learners": [3]}])
def test_a_status_of_another_shape_is_nothing(said: Any) -> None:
    end = EvaluatorEnd(ENDPOINT, name="e", inc=1, context=cast(Any, None))
    end.handle(Status(), [pack(said)])
    assert end.clock() is None


def test_at_the_end_it_knows_of_the_last_weights_before_the_farewell(
    watched: Callable[[Plan], Watched],
) -> None:
    world = calm(watched)
    world.drain = True
    world.go(LEASE)
    rank, end = world.group.ranks[0], world.evaluators[0].end
    world.group.step = lambda: None  # type: ignore[method-assign]
    order: list[str] = []
    handle = end.handle

    def note(message: Message, buffers: Sequence[Buffer]) -> None:
        order.append(type(message).__name__)
        handle(message, buffers)

    end.handle = note  # type: ignore[method-assign]
    last = world.group.version + 1
    rank.end.publish(Blob.of(last, "layout", b"w%d" % last))
    rank.end.leave(final=True, text="solved")
    world.go(2 * BEAT)
    assert end.over
    assert "Announce" in order[: order.index("Bye")]
    assert world.evaluators[0].taken[-1] == last


@pytest.mark.parametrize("waits", [True, False])
def test_the_last_weights_come_from_a_broker_that_has_them_whole(
    waits: bool, watched: Callable[[Plan], Watched]
) -> None:
    """They are many chunks. A learner that does not wait takes the rest of them with it."""
    world = calm(watched)
    world.drain = True
    world.go(LEASE)
    rank, evaluator = world.group.ranks[0], world.evaluators[0]
    world.group.step = lambda: None  # type: ignore[method-assign]
    last, body = world.group.version + 1, bytes(20 << 20)
    blob = Blob.of(last, "layout", b"w%d" % last + body)
    evaluator.end.weights.take = lambda: None  # type: ignore[method-assign]  # it stays
    rank.end.publish(blob)
    assert not rank.end.heard
    if waits:
        for _ in range(200):
            world.go(0.1)
            if rank.end.heard:
                break
        assert rank.end.heard
        assert world.server is not None
        assert world.server.weights.fetch.version == last
    rank.end.leave(final=True, text="solved")
    rank.turn()
    world.group.turn = lambda: None  # type: ignore[method-assign]  # its process is gone
    world.go(LEASE)
    assert evaluator.end.over
    while waits and evaluator.end.weights.blob is None and world.now < 1000.0:
        world.go(LEASE)  # a few messages a turn, and the first ones are small pieces
    arrived = evaluator.end.weights.blob
    assert (arrived is not None and arrived.announce.version == last) == waits


def test_another_broker_has_not_heard_what_the_one_before_had(
    watched: Callable[[Plan], Watched],
) -> None:
    world = calm(watched)
    world.drain = True
    world.go(2 * LEASE)
    end = world.group.ranks[0].end
    assert end.heard
    end.on_welcome(Welcome(99, "run", BEAT, LEASE, "tcp://broker:2", 0), ())
    assert not end.heard


def test_another_environment_is_refused(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    world.evaluators.append(Evaluator(world, spaces=("other", "other words")))
    with pytest.raises(RefusedError, match="other words"):
        world.go(2 * BEAT)


def test_it_may_not_do_what_samplers_do(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    assert world.server is not None
    evaluator, state = world.evaluators[0], world.server.ledger.state
    received, running = state.received, state.credit.running
    unexpected = world.server.counters.dropped["unexpected"]
    world.drain = True
    evaluator.link.send(encode(Unroll(evaluator.end.inc, 0, 0, 0, 0, 0, 3, 1), b"steps"))
    evaluator.link.send(encode(Ping(((0, 0, 5),), {})))
    world.go(0.5)
    assert world.server.counters.dropped["unexpected"] == unexpected + 1
    assert evaluator.end.inc not in state.actors
    assert received <= state.received <= received + running  # what samplers had begun


def test_it_leaves_like_everybody(watched: Callable[[Plan], Watched]) -> None:
    world = calm(watched)
    evaluator = world.evaluators.pop()
    evaluator.link.send(encode(Bye(evaluator.end.inc, False, "stopped")))
    assert test_ends.goes_on(world)
    assert world.server is not None
    assert world.server.roster.with_role("evaluator") == []
