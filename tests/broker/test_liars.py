"""Peers that lie to a broker: its real server, without sockets, on a clock of the test's own."""

import itertools
import logging
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from prometheus_client import CollectorRegistry

from broker import fields as wire_limits
from broker import introduction, said, wire
from broker import server as server_module
from broker.blobs import Blob
from broker.book import Book
from broker.config import BrokerConfig
from broker.introduction import Introduction
from broker.ledger import Ledger
from broker.metrics import BrokerMetrics
from broker.roster import Roster
from broker.server import Server
from broker.wire import Message, Outcome, Payload, Unroll

A, B, L, M, W = b"sampler a", b"sampler b", b"learner", b"other learner", b"watcher"
NOTHING = Introduction()
FAR = 1 << 35  # a version that nobody reaches


class Frame:
    """What the server looks at of a zmq.Frame, with a key's user."""

    address = "10.0.0.7"

    def __init__(self, data: bytes, user: str) -> None:
        self.buffer, self.bytes, self._user = memoryview(data), data, user

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, option: str) -> str:
        return {"User-Id": self._user, "Peer-Address": self.address}[option]


class Broker:
    """One server; everything it sends is kept."""

    now = 100.0

    def __init__(self, gate: Any = None, *, max_lag: int = 1, **limits: Any) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        book = Book(
            batch=4, max_lag=max_lag, max_lag_hard=50, queue_bytes=10**6, attempts=3,
            first_tag=1000,
        )  # fmt: skip
        more = {} if gate is None else {"gate": gate}
        self.server = Server(
            BrokerConfig(beat_s=1.0, lease_s=10.0, **limits), Ledger(book, lease_s=10.0),
            BrokerMetrics(CollectorRegistry()), inc=9, shared={},
            roster=Roster("run", lambda _: None), announce="tcp://broker:2",
            router=cast(Any, self), publisher=cast(Any, self), **more,
        )  # fmt: skip
        self.book, self.ledger = book, self.server.ledger
        self.errors = self.server.metrics.errors

    def send(self, frames: Sequence[Payload]) -> bool:
        parts = [f.bytes if isinstance(f, zmq.Frame | Frame) else bytes(f) for f in frames]
        if len(parts[0]) != 16 or parts[0][:2] != b"HR":  # else it goes to all
            self.sent.append((parts[0], wire.decode(parts[1:])[0]))
        return True

    def hears(self, route: bytes, message: Message, *buffers: bytes, user: str = "") -> None:
        frames = [
            Frame(route, user),
            *(Frame(_bytes(f), user) for f in wire.encode(message, *buffers)),
        ]
        self.server._receive(cast(Any, frames))

    def pump(self) -> list[tuple[bytes, Message]]:
        """What the server said since the last time."""
        self.server._pump()
        sent, self.sent = self.sent, []
        return sent

    def told(self, kind: type[Message]) -> list[Any]:
        return [message for _, message in self.pump() if isinstance(message, kind)]

    def hello(
        self, route: bytes, hello: wire.Hello, intro: Introduction = NOTHING, user: str = ""
    ) -> None:
        self.hears(route, hello, introduction.encode(intro), user=user)

    def sampler(
        self, route: bytes = A, inc: int = 1, streams: int = 1, user: str = "", **other: Any
    ) -> None:
        """Says HELLO as one that has just started."""
        intro = Introduction(streams=tuple((n, 0, 0, 0, ()) for n in range(streams)))
        self.hello(route, wire.Hello("actor", f"a{inc}", inc, spaces="s", **other), intro, user)

    def learner(
        self, route: bytes = L, inc: int = 50, *, rank: int = 0, world: int = 1, version: int = 0,
        spaces: str = "s", user: str = "", **intro: Any,
    ) -> None:  # fmt: skip
        hello = wire.Hello(
            "learner", f"l{inc}", inc, spaces=spaces, rank=rank, world=world, version=version
        )
        self.hello(route, hello, Introduction(**{"want": 8, "unroll_bytes": 100, **intro}), user)

    def unrolls(self, seqs: Sequence[int], route: bytes = A, inc: int = 1, **other: Any) -> None:
        for seq in seqs:
            fields = {"floor": 0, "version_min": 0, "version_max": 0, "steps": 8, "digest": 1}
            self.hears(route, Unroll(inc, 0, seq, **{**fields, **other}), b"x" * 100)

    def tags(self) -> list[int]:
        return [tag for s in self.book.leases.sessions.values() for tag in s.leases]


def _bytes(frame: Payload) -> bytes:
    return frame.bytes if isinstance(frame, zmq.Frame) else bytes(frame)


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: Broker.now, time=lambda: Broker.now)
    monkeypatch.setattr(Broker, "now", 100.0)
    monkeypatch.setattr(server_module, "time", clock)
    monkeypatch.setattr(server_module, "Mailbox", lambda broker: broker)
    if "broker.complaints" in sys.modules:
        monkeypatch.setattr("broker.complaints.time", clock)


@pytest.fixture
def honest() -> Iterator[Broker]:
    """A sampler and a learner at work: three unrolls delivered. The books balance at the end."""
    one = Broker()
    one.sampler()
    one.learner()
    one.pump()
    one.unrolls([0, 1, 2])
    assert len(list(one.told(wire.Deliver))) == 3
    yield one
    one.pump()
    assert one.ledger.unaccounted() == 0


def works(one: Broker, tags: Sequence[int]) -> None:
    """The honest learner trains on what it has, and the sampler hears of it."""
    ranges = tuple((tag, tag + 1) for tag in tags)
    one.hears(L, wire.Done(50, one.book.credit.version + 1, 100, ranges))
    acks = one.told(wire.Ack)
    assert sum(hi - lo for ack in acks for _, lo, hi in ack.ranges) == len(tags)


# ---- learners ---------------------------------------------------------------------------------


def test_a_tag_named_twice_is_one_lease(honest: Broker) -> None:
    tag = honest.tags()[0]
    honest.hears(L, wire.Done(50, 1, 8, ((tag, tag + 1), (tag, tag + 1), (tag, tag + 3))))
    assert honest.book.outcomes[Outcome.TRAINED] == 3
    honest.hears(L, wire.Nack(50, ((tag, tag + 3), (tag, tag + 1)), Outcome.REJECTED, ""))
    assert honest.book.outcomes[Outcome.REJECTED] == 0


@pytest.mark.parametrize("tag", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_tag_at_the_end_of_numbers_leaves_room_for_ours(honest: Broker, tag: int) -> None:
    honest.learner(M, 51, rank=1, world=2, held=((tag, 77, 0, 0),))
    works(honest, honest.tags()[:3])
    honest.unrolls([3])
    (deliver,) = honest.told(wire.Deliver)
    assert deliver.tag < 2000


@pytest.mark.parametrize("kind", ["done", "ping", "hello", "bye"])
def test_one_that_was_given_nothing_changes_nothing(honest: Broker, kind: str) -> None:
    """It knows all tags, and says what it likes about them, about versions and about the end."""
    honest.learner(M, 51, rank=1, world=2, want=0)
    everything = ((0, 1 << 62),)
    for tags in (everything, everything * 100):
        match kind:
            case "done":
                honest.hears(M, wire.Done(51, FAR, 1 << 52, tags))
                honest.hears(M, wire.Nack(51, tags, Outcome.REJECTED, ""))
                honest.hears(M, wire.Nack(51, tags, Outcome.DUPLICATE, ""))
                honest.hears(M, wire.Nack(51, tags, Outcome.ABANDONED, ""))
            case "ping":
                honest.hears(M, wire.LearnerPing(51, FAR, 0, 1 << 62, tags, {}))
                honest.hears(M, wire.LearnerPing(51, FAR, 0, 1 << 62, (), {}))
            case "hello":
                honest.learner(M, 51, rank=1, world=2, want=0, version=FAR)
            case "bye":
                honest.hears(M, wire.Done(50, FAR, 0, tags))  # as the honest one
                honest.hears(M, wire.Bye(50, True, "everybody go home"))
    assert len(honest.tags()) == 3
    assert honest.book.outcomes.total() == 0
    assert honest.book.credit.version == 0
    assert not honest.ledger.over
    works(honest, honest.tags())


def test_wide_ranges_cost_no_more_than_the_leases_there_are(honest: Broker) -> None:
    began = time.monotonic()
    for _ in range(5):
        honest.hears(
            L, wire.Done(50, 0, 0, tuple((n << 40, (n << 40) + 65536) for n in range(1, 200)))
        )
        honest.hears(
            L, wire.LearnerPing(50, 0, 0, -1, tuple((n, n + 65536) for n in range(200)), {})
        )
    assert time.monotonic() - began < 1.0
    assert len(honest.tags()) == 3


def test_a_fenced_rank_ends_nothing(honest: Broker) -> None:
    honest.learner(M, 51)  # the same rank, begun again
    honest.hears(L, wire.Bye(50, True, "done"))
    assert honest.told(wire.Bye) == []
    assert not honest.ledger.over


def test_the_version_rises_with_what_a_rank_was_given(honest: Broker) -> None:
    honest.hears(L, wire.LearnerPing(50, FAR, 0, -1, (), {}))
    honest.hears(L, wire.Done(50, FAR, 0, ()))
    assert honest.book.credit.version <= 100  # some DONEs may have been lost
    rank_1 = Broker()
    rank_1.sampler()
    rank_1.learner(world=2, version=500)
    rank_1.learner(M, 51, rank=1, world=2, version=500)
    rank_1.pump()
    rank_1.unrolls([0, 1, 2, 3], version_min=500, version_max=500)
    rank_1.pump()
    tags = list(rank_1.book.leases.sessions[1].leases)
    assert tags
    rank_1.hears(M, wire.Done(51, 501, 9, tuple((tag, tag + 1) for tag in tags)))
    assert rank_1.book.credit.version == 501  # at once, whatever rank 0 has said
    rank_1.hears(M, wire.Done(51, FAR, 9, ()))
    assert rank_1.book.credit.version == 501


def test_a_rank_that_comes_before_the_first_decides_no_version() -> None:
    one = Broker()
    one.learner(M, 51, rank=1, world=2, version=FAR)
    one.learner(L, 50, rank=0, world=2, version=500)
    one.hears(M, wire.Done(51, FAR, 0, ()))
    (welcome,) = [m for route, m in one.pump() if route == L and isinstance(m, wire.Welcome)]
    assert welcome.version == 500
    assert one.book.credit.version == 500
    assert one.ledger.rolled_back == 0


@pytest.mark.parametrize(("rank", "world"), [(-1, 1), (1, 1), (5, 1 << 30), (0, 1 << 30), (0, 0)])
def test_ranks_that_no_batch_has(rank: int, world: int) -> None:
    one = Broker()
    one.learner(rank=rank, world=world)
    ((_, refuse),) = one.pump()
    assert isinstance(refuse, wire.Refuse)
    assert refuse.code == wire.Refusal.RANK


def test_another_rank_does_not_send_the_samplers_home(honest: Broker) -> None:
    honest.learner(M, 51, rank=1, world=2, spaces="of something else")
    ((route, refuse),) = honest.pump()
    assert (route, type(refuse)) == (M, wire.Refuse)
    works(honest, honest.tags())


def publish(one: Broker, route: bytes, version: int, body: bytes = b"weights") -> None:
    blob = Blob.of(version, "layout", body)
    chunk, view = blob.first()
    one.hears(route, blob.announce)
    one.hears(route, chunk, bytes(view))


def test_weights_from_the_future_do_not_stop_the_real_ones(honest: Broker) -> None:
    honest.learner(M, 51, rank=1, world=2, want=0)
    publish(honest, L, FAR)
    publish(honest, M, 1, b"from a rank that publishes none")
    assert honest.server.weights.version == -1
    publish(honest, L, 1)
    assert honest.server.weights.version == 1
    honest.hears(L, Blob.of(2, "layout", b"two").announce)
    honest.hears(M, wire.Chunk(2, 0), b"six")  # of what the other announced
    assert honest.server.weights.refused == 0


def test_nobody_trained_what_was_not_started(honest: Broker) -> None:
    """Said of a sampler that is here, and of one that comes later."""
    honest.learner(
        M, 51, rank=1, world=2, want=0, trained=((1, 0, ((3, 500),)), (2, 0, ((0, 99),)))
    )
    limit = honest.book.actors[1].streams[0].limit
    works(honest, honest.tags())
    honest.sampler(B, 2)
    honest.pump()
    assert honest.book.actors[2].streams[0].limit <= 4  # nor is there credit for it
    trained = honest.book.outcomes[Outcome.TRAINED]
    honest.unrolls(range(0, 1), route=B, inc=2)
    assert honest.told(wire.Ack) == []
    assert honest.book.outcomes[Outcome.TRAINED] == trained
    assert all(seq < limit for seq in honest.book.actors[1].streams[0].settled)


# ---- samplers ---------------------------------------------------------------------------------


def test_a_samplers_word_about_versions_is_no_law() -> None:
    """After a restart of the broker: most of them decide, and nothing counts as rolled back."""
    one = Broker()
    for n, version in enumerate((FAR, 498, 499, 500, -1)):
        one.sampler(b"%d" % n, 1 + n, version=version)
    assert one.book.credit.version == 0
    one.learner(version=500)
    assert one.book.credit.version == 500
    assert one.ledger.rolled_back == 0
    again = Broker()
    for n in range(3):
        again.sampler(b"%d" % n, 1 + n, version=700)
    again.learner(version=650)  # both lost their memories; the samplers' weights are called 700
    assert again.book.credit.version == 701
    assert again.ledger.rolled_back == 0
    again.sampler(b"late", 9, version=FAR)
    assert again.book.credit.version == 701


def test_what_was_never_started_is_not_abandoned(honest: Broker) -> None:
    honest.hears(A, wire.Bye(1, False, "bye", tuple((0, n, 1 << 50) for n in range(64))))
    honest.hears(A, wire.Bye(1, False, "bye"))
    assert honest.book.outcomes[Outcome.ABANDONED] <= 8  # all credit that there is
    assert honest.book.received <= 8


def test_a_long_goodbye_counts_all(honest: Broker) -> None:
    """More than one message of ranges: the credit stays until the last."""
    limit = honest.book.actors[1].streams[0].limit
    full = tuple((0, 0, 0) for _ in range(64))
    honest.hears(A, wire.Bye(1, False, "bye", full))
    honest.hears(A, wire.Bye(1, False, "bye", ((0, 3, limit),)))
    assert honest.book.outcomes[Outcome.ABANDONED] == limit - 3
    assert honest.book.credit.running == 0


def test_one_connection_is_one_incarnation() -> None:
    one = Broker()
    for inc in range(1, 1000):
        Broker.now += 1.0
        one.sampler(A, inc)
        one.sent.clear()
    assert len(one.server.roster._peers) == len(one.server.roster._routes) == 1


def test_a_live_incarnation_keeps_its_role(honest: Broker) -> None:
    honest.hello(W, wire.Hello("watcher", "w", 1))
    ((route, refuse),) = honest.pump()
    assert (route, refuse.code) == (W, wire.Refusal.IDENTITY)  # type: ignore[attr-defined]
    honest.sampler(B, 50)
    ((route, refuse),) = honest.pump()
    assert (route, refuse.code) == (B, wire.Refusal.IDENTITY)  # type: ignore[attr-defined]
    works(honest, honest.tags())


def test_a_reconnect_works_at_once(honest: Broker) -> None:
    """The same incarnation on another route, while the old one was heard just now."""
    honest.sampler(B, 1)
    assert [type(m) for route, m in honest.pump() if route == B][:1] == [wire.Welcome]
    assert honest.server.reception.moved == 1  # and is seen: it might have been somebody else
    honest.unrolls([3], route=B)
    honest.unrolls([4], route=A)
    assert [type(m) for route, m in honest.pump() if route == A] == [wire.Resync]


def test_who_speaks_as_another_is_not_heard(honest: Broker) -> None:
    honest.sampler(B, 2)
    honest.pump()
    for seq in range(10):
        honest.unrolls([seq], route=B, inc=1)
    honest.hears(B, wire.Bye(1, True, "everybody go home", ((0, 0, 9),)))
    assert honest.errors["identity"] == 11
    assert honest.book.received == 3
    assert honest.book.actors[1].alive


def test_versions_that_cannot_be_make_no_new_figures(honest: Broker) -> None:
    works(honest, honest.tags())
    for seq in range(3, 6):
        honest.unrolls([seq], version_min=FAR - seq, version_max=FAR)
    honest.pump()
    lags = honest.server.metrics.lags
    assert 0 <= lags.total <= 1000 * sum(lags.counts)
    honest.unrolls([6], version_min=5, version_max=3)
    assert honest.errors["numbers"] == 1
    assert honest.book.received == 6


def test_no_figure_of_one_spoils_those_of_all(honest: Broker) -> None:
    honest.sampler(B, 2)
    honest.hears(A, wire.Ping((), {"env_steps": 5.0}))
    poison = {"env_steps": math.nan, "x": math.inf, "y" * 100: 1.0, "line\nbreak": 1.0}
    honest.hears(B, wire.Ping((), poison))
    assert honest.server.status()["actors"] == {"behind": 0, "count": 2, "env_steps": 5.0}
    for n in range(5):
        honest.hears(B, wire.Ping((), {f"n{n}-{m}": float(m) for m in range(200)}))
        assert len(honest.server.status()["actors"]) <= said.MOST_NUMBERS + 2
        assert honest.server.status()["actors"]["env_steps"] == 5.0
    honest.hears(L, wire.LearnerPing(50, 0, 0, -1, (), {"loss": math.nan, "version": 3.0}))
    (learner,) = honest.server.status()["learners"]
    assert {name for name in learner if name not in ("name", "silent_s")} == {"version"}
    assert learner["version"] == 3.0


def test_episodes_that_cannot_be_are_left_out(honest: Broker) -> None:
    works(honest, honest.tags())
    honest.unrolls([3], ended=3, episodes=((math.nan, 5), (7.0, 6), (-math.inf, 7)))
    (deliver,) = honest.told(wire.Deliver)
    assert deliver.episodes == ((7.0, 6),)


def test_one_line_stays_one_line(honest: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hello = wire.Hello("actor", "a\nERROR all is lost\x1b[2J", 7, spaces="s")
    honest.hello(B, hello, Introduction(streams=((0, 0, 0, 0, ()),)))
    honest.hears(B, wire.Bye(7, False, "gone\r\nERROR it is" + "x" * 3000))
    honest.hello(W, wire.Hello("king\nERROR of all", "k", 8))
    other = wire.Hello("evaluator", "e", 9, spaces="other")
    honest.hello(W, other, Introduction(spaces="a box\nERROR of all" + "x" * 50_000))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) >= 4
    assert all(line.isprintable() and len(line) < 1200 for line in lines)


def test_a_flood_of_lies_is_no_flood_of_lines(
    honest: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    honest.unrolls([1 << 50] * 5000)
    assert honest.errors["credit"] == 5000
    assert len(caplog.records) < 300


def test_an_unroll_larger_than_any_is_dropped(honest: Broker) -> None:
    works(honest, honest.tags())
    big = Unroll(1, 0, 3, 0, 0, 0, 8, 1)
    honest.hears(A, big, b"x" * 50_000)
    assert honest.book.received == 3
    assert honest.errors["size"] == 1
    honest.hears(A, wire.Ping(((0, 3, 4),), {}))
    (pong,) = honest.told(wire.Pong)
    assert pong.missing == ((0, 3, 4),)  # the honest one may come in its place


def test_what_brings_no_buffers_brings_none(honest: Broker) -> None:
    honest.hears(A, wire.Ping((), {}), b"x" * 1000)
    honest.hears(A, wire.Watch(), b"")
    assert honest.errors["size"] == 2
    assert honest.pump() == []


def test_an_error_is_shown_with_how_often_and_a_flood_of_them_stays_small(
    honest: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    honest.hears(A, wire.Trouble(1, "environment 3 failed", 2))
    honest.hears(A, wire.Trouble(1, "environment 4 failed", 1))
    (shown,) = honest.server.status()["troubles"]
    assert (shown["role"], shown["name"], shown["count"]) == ("actor", "a1", 3)
    assert shown["text"] == "environment 3 failed"
    assert [record.getMessage() for record in caplog.records].count(
        "actor a1: environment 3 failed"
    ) == 1
    honest.hears(A, wire.Trouble(2, "of another", 1))
    assert honest.errors["identity"] == 1
    for n in range(10_000):
        honest.hears(A, wire.Trouble(1, "x" * (n % 1000) + chr(97 + n % 26), 1 << 53))
        Broker.now += 0.01
    assert len(honest.server.status()["troubles"]) == 20
    assert honest.server.troubles.totals["actor"] < 10**11


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("10.0.0.7", "10.0.0.7:9101"),
        ("::ffff:10.0.0.7", "10.0.0.7:9101"),
        ("fd00::7", "[fd00::7]:9101"),
        ("localhost:0:0:31099", "127.0.0.1:9101"),  # what libzmq says of a pipe
        ("", "127.0.0.1:9101"),
    ],
)
def test_metrics_are_where_the_connection_comes_from(
    monkeypatch: pytest.MonkeyPatch, address: str, target: str
) -> None:
    """A peer names a port and no host: Prometheus is sent nowhere else."""
    monkeypatch.setattr(Frame, "address", address)
    one = Broker()
    one.hello(A, wire.Hello("actor", "a", 1, spaces="s"), Introduction(port=9101))
    assert [peer.target for peer in one.server.roster.everybody()] == [target]


@pytest.mark.parametrize("role", ["actor", "watcher", "evaluator", "learner"])
def test_an_introduction_has_a_size(role: str) -> None:
    one = Broker(streams=4)
    one.hello(A, wire.Hello(role, "x", 7, spaces="s"), Introduction(spaces="x" * (17 << 20)))
    assert one.errors["size"] == 1
    assert one.pump() == []


def test_a_floor_that_never_moves_is_remembered_only_so_far() -> None:
    one = Broker()
    one.sampler()
    one.learner(want=1 << 40)
    for seq in range(6000):
        one.pump()
        one.unrolls([seq])
        one.pump()
        tags = one.tags()
        if tags:
            one.hears(L, wire.Done(50, one.book.credit.version + 1, 1 << 40, ((0, 1 << 40),)))
        Broker.now += 0.01
    assert len(one.book.actors[1].streams[0].settled) <= one.book.window + 1 < 6000
    assert one.errors["credit"] > 0


def test_open_ranges_cost_no_more_than_they_may(honest: Broker) -> None:
    began = time.monotonic()
    for _ in range(20):
        honest.hears(A, wire.Ping(tuple((0, n, 1 << 53) for n in range(64)), {}))
        honest.pump()
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    "intro",
    [
        Introduction(streams=((0, 0, 1 << 50, 1 << 50, ()),)),
        Introduction(streams=tuple((n, 0, 4000, 4000, ((0, 4000),)) for n in range(64))),
        Introduction(trained=tuple((n, 0, ((0, 1 << 53),)) for n in range(3))),
    ],
)
def test_an_introduction_names_only_so_much(intro: Introduction) -> None:
    with pytest.raises(wire.Malformed):
        introduction.decode(introduction.encode(intro))


def test_what_a_learner_says_of_the_dead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.book._MOST_DEAD_SEQS", 1000)
    monkeypatch.setattr("broker.book._MOST_DEAD_STREAMS", 50)
    one = Broker()
    for n in range(20):
        Broker.now += 1.0
        one.learner(trained=tuple((100 * n + inc, 0, ((0, 99),)) for inc in range(30)))
        streams = [s for actor in one.book.actors.values() for s in actor.streams.values()]
        assert len(streams) <= 50
        assert sum(len(stream.settled) for stream in streams) <= 1000


class Babbler:
    """Says anything that the types allow, mostly about what is there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one = Broker(max_lag=self.rng.randrange(4))

    def number(self) -> int:
        rng = self.rng
        tags = self.one.tags()
        if tags and rng.random() < 0.4:
            return rng.choice(tags) + rng.randrange(2)
        near = [0, 1, 2, 3, 4, 5, 7, 8, 50, 51, 1000, self.one.book.credit.version + 1]
        far = [63, 64, 65, 4095, 4096, 1 << 35, 1 << 36, 1 << 52, 1 << 53, (1 << 63) - 1, 1 << 64]
        return rng.choice(near if rng.random() < 0.8 else far) - rng.randrange(2)

    def spans(self, width: int) -> tuple[tuple[int, ...], ...]:
        count = self.rng.choice((0, 1, 1, 2, 3, 64, 65))
        return tuple(tuple(self.number() for _ in range(width)) for _ in range(count))

    def intro(self) -> Introduction:
        rng = self.rng
        streams = []
        for n in range(rng.randrange(3)):
            floor = rng.choice((0, 0, 1, 5))
            following = floor + rng.choice((0, 0, 1, 5, 4000))
            unacked = ((floor, following),) if rng.random() < 0.5 else ()
            streams.append((n, floor, following, following + rng.randrange(2), unacked))
        trained = tuple((self.number(), rng.randrange(3), ((0, 3), (5, 9))) for _ in range(3))
        held = self.spans(4) if rng.random() < 0.3 else ()
        return Introduction(
            unroll_bytes=rng.choice((0, 100, 100, 100, 1 << 53)), streams=tuple(streams),
            trained=trained if rng.random() < 0.3 else (), held=cast(Any, held),
            want=rng.choice((0, 4, 4, 1 << 53)),
        )  # fmt: skip

    def unroll(self, inc: int) -> Unroll:
        """Often one that was granted."""
        rng, n = self.rng, self.number
        actor = self.one.book.actors.get(inc)
        streams = list(actor.streams.values()) if actor is not None else []
        if not streams or rng.random() < 0.2:
            return Unroll(inc, rng.randrange(2), rng.randrange(12), n(), 0, n(), n(), 1, n())
        stream = rng.choice(streams)
        seq = max(0, stream.limit - rng.randrange(6))
        version = self.one.book.credit.version
        return Unroll(inc, stream.number, seq, rng.choice((0, seq, n())), version, version, 8, 1)

    def message(self, route: bytes) -> tuple[Message, tuple[bytes, ...]]:
        rng, n = self.rng, self.number
        peer = self.one.server.roster.get(route)
        inc = rng.choice((1, 2, 50, 51, 3))
        kind = rng.randrange(14)
        if peer is None:
            kind = rng.choice((0, 1, kind))
        elif rng.random() < 0.9:
            inc = peer.inc
            mine = {
                "actor": (0, 2, 3, 4, 5, 5, 10),
                "learner": (1, 6, 6, 6, 7, 8, 9, 9, 10, 11, 12),
            }
            kind = rng.choice(mine.get(peer.role, (5, 13)))
        stats = {"a": rng.choice((1.0, math.nan, math.inf, 1e308))}
        outcome = rng.choice(list(Outcome))
        match kind:
            case 0 | 1:
                role = rng.choice(("actor", "learner", "watcher", "evaluator"))
                if rng.random() < 0.9:
                    role = {A: "actor", B: "actor", L: "learner", M: "learner"}.get(route, role)
                hello = wire.Hello(
                    role, "n", inc, spaces=rng.choice(("", "s", "s", "s", "s", "s", "t")),
                    rank=rng.choice((0, 0, 1, 2)), world=rng.choice((1, 2, 2, 3, 0)), version=n(),
                )  # fmt: skip
                return hello, (introduction.encode(self.intro()),)
            case 2 | 3 | 4:
                return self.unroll(inc), (b"x" * rng.choice((0, 100, 100, 100, 10_000)),)
            case 5:
                return wire.Ping(cast(Any, self.spans(3)), stats), ()
            case 6 | 7:
                return wire.Done(inc, n(), n(), cast(Any, self.spans(2))), ()
            case 8:
                return wire.Nack(inc, cast(Any, self.spans(2)), outcome, "r"), ()
            case 9:
                return wire.LearnerPing(inc, n(), n(), n(), cast(Any, self.spans(2)), stats), ()
            case 10:
                return wire.Bye(inc, rng.random() < 0.3, "t", cast(Any, self.spans(3))), ()
            case 11:
                return wire.Announce(n(), "l", "d", n(), n(), bytes(8 * rng.randrange(3))), ()
            case 12:
                return wire.Chunk(n(), n()), (b"x" * rng.randrange(20),)
            case _:
                return rng.choice(
                    [wire.Get(n(), n(), n()), wire.Watch(), wire.Acting(n(), "d"), wire.Limit(())]
                ), ()

    def babble(self, times: int) -> None:
        one, rng = self.one, self.rng
        for _ in range(times):
            Broker.now += rng.choice((0.0, 0.01, 0.1, 0.1, 0.5))
            route = rng.choice((A, B, L, M, W))
            try:
                message, buffers = self.message(route)
                wire.encode(message, *buffers)
            except (OverflowError, AssertionError):
                continue  # more than travels
            one.hears(route, message, *buffers)
            if rng.random() < 0.3:
                one.pump()
            if rng.random() < 0.05:
                one.server._sweep(Broker.now)
            self.check()

    def check(self) -> None:
        """Every running total against the records it is about."""
        one, book = self.one, self.one.book
        streams = [s for actor in book.actors.values() for s in actor.streams.values()]
        here = [entry for stream in streams for entry in stream.present.values()]
        leased = [e for session in book.leases.sessions.values() for e in session.leases.values()]
        queued = {id(entry) for entry in book.queue if not entry.gone and entry.tag < 0}
        assert one.ledger.unaccounted() == 0
        assert book.entries == len(here) == len(queued) + len(leased) == book.credit.present
        assert book.nbytes == sum(entry.nbytes for entry in here)
        assert book.credit.running == sum(s.running for s in streams if s.joined)
        assert 0 <= book.credit.version <= wire_limits.MAX_VERSION + 100
        assert one.server.status()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_said_the_books_balance(seed: int) -> None:
    Babbler(seed).babble(400)


# ---- how often, how much ----------------------------------------------------------------------


def test_an_unroll_over_its_rate_comes_again() -> None:
    one = Broker(peer_messages_s=10.0, max_lag=5)
    one.sampler()
    one.learner()
    Broker.now += 2.0
    one.pump()
    limit = one.book.actors[1].streams[0].limit
    one.unrolls([0] * 9)  # a burst of copies
    one.unrolls(range(limit))
    assert one.errors["rate"] > 0
    missing: tuple[Any, ...] = ((0, 0, 1),)
    for _ in range(20):
        Broker.now += 0.3
        one.hears(A, wire.Ping(((0, 0, limit),), {}))
        for pong in one.told(wire.Pong):
            missing = pong.missing
            one.unrolls([seq for _, lo, hi in missing for seq in range(lo, hi)])
    assert missing == ()
    assert one.book.received == limit


def test_bytes_have_a_rate_too() -> None:
    one = Broker(peer_mb_s=0.001)
    one.sampler()
    one.learner()
    one.pump()
    one.unrolls([0] * 100)
    assert 0 < one.errors["rate"] < 100
    assert one.book.received == 1


def test_all_together_have_a_rate() -> None:
    one = Broker(messages_s=20.0)
    for n in range(10):
        for _ in range(10):
            one.hears(b"%d" % n, wire.Watch())
    assert one.errors["rate"] >= 70


def test_strangers_are_answered_now_and_then() -> None:
    one = Broker()
    for _ in range(1000):
        one.hears(b"stranger", wire.Watch())
    assert len(one.pump()) == 1
    assert one.errors["unknown"] == 1000
    Broker.now += 0.2
    one.hears(b"stranger", wire.Watch())
    assert len(one.pump()) == 1


def test_strangers_leave_nothing_behind() -> None:
    one = Broker()
    for n in range(20_000):
        one.hears(b"%d" % n, wire.Watch())
        one.sent.clear()
    assert len(one.server.door._strangers) <= 4096


def test_hello_has_a_rate() -> None:
    one = Broker()
    for _ in range(100):
        one.sampler()
    assert len(one.told(wire.Welcome)) == 10
    Broker.now += 1.0
    for _ in range(100):
        one.sampler()
    assert len(one.told(wire.Welcome)) == 5
    assert one.errors["hello"] == 185


def test_a_full_house_says_so() -> None:
    one = Broker(peers=2, streams=3)
    one.sampler(A, 1)
    one.sampler(B, 2)
    one.hello(W, wire.Hello("watcher", "w", 3))
    (refuse,) = one.told(wire.Refuse)
    assert "broker.peers" in refuse.text
    one.sampler(b"again", 2)  # whoever is known has a place
    assert len(one.told(wire.Welcome)) == 1
    one.sampler(A, 1, streams=4)
    (refuse,) = one.told(wire.Refuse)
    assert "broker.streams" in refuse.text


def test_a_flood_of_watch_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Broker()
    one.hello(W, wire.Hello("watcher", "w", 3))
    looks = itertools.count()
    sums = one.server.roster.sums
    monkeypatch.setattr(one.server.roster, "sums", lambda: (next(looks), sums())[1])
    for _ in range(100):
        one.hears(W, wire.Watch())
    assert len(one.told(wire.Status)) == 100
    assert next(looks) == 1


# ---- keys -------------------------------------------------------------------------------------


class Gate:
    """Whose keys are in the folder."""

    def __init__(self, *users: str) -> None:
        self.users = set(users)

    def allowed(self, user: str) -> bool:
        return user in self.users


def refused(one: Broker) -> str:
    ((_, refuse),) = one.pump()
    assert isinstance(refuse, wire.Refuse)
    assert refuse.code == wire.Refusal.IDENTITY
    return refuse.text


def test_a_key_speaks_for_its_role_only() -> None:
    one = Broker(Gate("actor:a", "learner:l", "evaluator:e"))
    one.learner(user="actor:a")
    assert "actor:a" in refused(one)
    one.sampler(user="learner:l")
    assert "learner:l" in refused(one)
    one.sampler(user="")
    refused(one)
    for n, user in enumerate(("actor:a", "learner:l", "evaluator:e")):
        one.hello(b"%d" % n, wire.Hello("watcher", "w", 70 + n), user=user)
    one.sampler(user="actor:a")
    one.learner(user="learner:l")
    assert len(one.told(wire.Welcome)) == 5


def test_an_incarnation_belongs_to_its_first_user() -> None:
    one = Broker(Gate("actor:a", "actor:b"))
    one.sampler(A, 1, user="actor:a")
    one.pump()
    one.sampler(B, 1, user="actor:b")
    assert "another key" in refused(one)
    one.hears(A, wire.Bye(1, False, "gone"))
    one.sampler(B, 1, user="actor:b")  # its windows are still here
    assert "another key" in refused(one)
    one.sampler(b"elsewhere", 1, user="actor:a")
    assert len(one.told(wire.Welcome)) == 1


def test_a_key_that_is_withdrawn_is_out_at_the_next_tick() -> None:
    gate = Gate("actor:a", "actor:b", "learner:l")
    one = Broker(gate)
    one.sampler(A, 1, user="actor:a")
    one.sampler(B, 2, user="actor:b")
    one.learner(user="learner:l")
    one.pump()
    one.unrolls([0, 1])
    one.pump()
    running = one.book.actors[2].streams[0].running
    assert running > 0
    gate.users -= {"actor:b"}
    one.server._sweep(Broker.now)
    assert not one.book.actors[2].streams[0].joined  # its credit is for others
    one.unrolls([0], route=B, inc=2)
    assert [type(m) for route, m in one.pump() if route == B] == [wire.Resync]
    one.sampler(B, 2, user="actor:b")
    assert "withdrawn" in refused(one)
    gate.users -= {"learner:l"}
    one.server._sweep(Broker.now)
    assert one.book.leases.sessions == {}
    assert one.book.entries == 2  # they wait for another
