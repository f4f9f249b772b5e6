"""A ledger, and what its peers know of it; no sockets, no clock."""

from typing import Any

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.records import Effects
from headrace.broker.ledger.state import LedgerState
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello, Outcome, Unroll, ranges

LEASE = 10.0
SIZE = 10
BODY = (b"x" * SIZE,)


def ledger(**other: int) -> Ledger:
    settings: dict[str, Any] = {
        "batch": 4,
        "max_lag": 1,
        "max_lag_hard": 50,
        "queue_bytes": 10**6,
        "attempts": 3,
        "first_tag": 1000,
    }
    return Ledger(LedgerState(**{**settings, **other}), lease_s=LEASE)


def recount(one: Ledger) -> None:
    """Every running total against the records it is about."""
    state = one.state
    streams = [stream for actor in state.actors.values() for stream in actor.streams.values()]
    here = [entry for stream in streams for entry in stream.present.values()]
    leased = [e for session in state.leases.sessions.values() for e in session.leases.values()]
    queued = {id(entry) for entry in state.queue if not entry.gone and entry.tag < 0}
    assert one.unaccounted() == 0
    assert state.entries == len(here) == len(queued) + len(leased) == state.credit.present
    assert {id(entry) for entry in here} == queued | {id(entry) for entry in leased}
    assert state.nbytes == sum(entry.nbytes for entry in here)
    assert state.credit.running == sum(s.running for s in streams if s.joined)
    for stream in streams:
        assert not stream.present.keys() & stream.settled.keys()
        assert stream.arrived <= stream.limit or not stream.joined


class Sampler:
    """What a sampler knows."""

    def __init__(self, inc: int, streams: int) -> None:
        self.inc, self.alive = inc, True
        self.next = [0] * streams
        self.limit = [0] * streams
        self.open: dict[tuple[int, int], Unroll] = {}  # (stream, seq) not acknowledged
        self.ends: dict[tuple[int, int], Outcome] = {}

    def floor(self, stream: int) -> int:
        return min((q for s, q in self.open if s == stream), default=self.next[stream])

    def ranges(self) -> list[tuple[int, int, int]]:
        return [(s, q, q + 1) for s, q in sorted(self.open)]

    def streams(self) -> list[Any]:
        return [
            (s, self.floor(s), n, n, ranges(sorted(q for t, q in self.open if t == s)))
            for s, n in enumerate(self.next)
        ]

    def make(self, stream: int, version: int = 0, newest: int | None = None) -> Unroll:
        """`version`: acts in its first step; `newest`: in its last, None = the same."""
        seq = self.next[stream]
        self.next[stream] += 1
        last = version if newest is None else newest
        unroll = Unroll(self.inc, stream, seq, self.floor(stream), version, last, 1, 0)
        self.open[stream, seq] = unroll
        return unroll

    def hear(self, effects: Effects) -> None:
        for inc, grants in effects.limits:
            for stream, limit, _ in grants if inc == self.inc else ():
                self.limit[stream] = max(self.limit[stream], limit)
        for inc, outcome, acked in effects.acks:
            for stream, lo, hi in acked if inc == self.inc else ():
                for seq in range(lo, hi):
                    if self.open.pop((stream, seq), None) is not None:
                        self.ends[stream, seq] = outcome


def join(one: Ledger, inc: int = 1, streams: int = 1, now: float = 0.0) -> Sampler:
    sampler = Sampler(inc, streams)
    one.actor_hello(inc, f"a{inc}", sampler.streams(), now=now)
    return sampler


def learn(one: Ledger, inc: int = 50, **other: Any) -> int:
    """Does with a learner's HELLO as the server does."""
    payload = {key: other.pop(key) for key in ("want", "trained", "held") if key in other}
    rest = {key: other.pop(key) for key in ("now", "acted", "published") if key in other}
    return one.learner_hello(
        Hello("learner", "", inc, **other),
        HelloPayload(**{"want": 9999, **payload}),
        **{"now": 0.0, **rest},
    )


def send(
    one: Ledger, sampler: Sampler, stream: int = 0, version: int = 0, newest: int | None = None
) -> bool:
    return one.unroll(sampler.make(stream, version, newest), BODY, SIZE)


def step(one: Ledger, inc: int, tags: list[int], version: int) -> None:
    """Does with DONE as the server does."""
    one.done(inc, ranges(sorted(tags)))
    one.learner_heard(inc, 0.0, version=version)


def ready(**other: int) -> tuple[Ledger, Sampler]:
    """A ledger with a learner, and a sampler that holds credit."""
    one = ledger(**other)
    sampler = join(one)
    learn(one)
    sampler.hear(one.decide(0.0))
    return one, sampler


def tags(one: Ledger) -> list[int]:
    return [entry.tag for entry in one.decide(0.0).deliver]
