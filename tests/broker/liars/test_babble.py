"""One that says anything: the books balance."""

import math
import random
from typing import Any, cast

import pytest

from headrace.broker.protocol import fields as wire_limits
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Message, Outcome, Unroll
from tests.broker.liars.talk import A, B, Broker, L, M, W


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
        near = [0, 1, 2, 3, 4, 5, 7, 8, 50, 51, 1000, self.one.state.credit.version + 1]
        far = [63, 64, 65, 4095, 4096, 1 << 35, 1 << 36, 1 << 52, 1 << 53, (1 << 63) - 1, 1 << 64]
        return rng.choice(near if rng.random() < 0.8 else far) - rng.randrange(2)

    def spans(self, width: int) -> tuple[tuple[int, ...], ...]:
        count = self.rng.choice((0, 1, 1, 2, 3, 64, 65))
        return tuple(tuple(self.number() for _ in range(width)) for _ in range(count))

    def intro(self) -> HelloPayload:
        rng = self.rng
        streams = []
        for n in range(rng.randrange(3)):
            floor = rng.choice((0, 0, 1, 5))
            following = floor + rng.choice((0, 0, 1, 5, 4000))
            unacked = ((floor, following),) if rng.random() < 0.5 else ()
            streams.append((n, floor, following, following + rng.randrange(2), unacked))
        trained = tuple((self.number(), rng.randrange(3), ((0, 3), (5, 9))) for _ in range(3))
        held = self.spans(4) if rng.random() < 0.3 else ()
        return HelloPayload(
            unroll_bytes=rng.choice((0, 100, 100, 100, 1 << 53)),
            streams=tuple(streams),
            trained=trained if rng.random() < 0.3 else (),
            held=cast(Any, held),
            want=rng.choice((0, 4, 4, 1 << 53)),
        )

    def unroll(self, inc: int) -> Unroll:
        """Often one that was granted."""
        rng, n = self.rng, self.number
        actor = self.one.state.actors.get(inc)
        streams = list(actor.streams.values()) if actor is not None else []
        if not streams or rng.random() < 0.2:
            return Unroll(inc, rng.randrange(2), rng.randrange(12), n(), 0, n(), n(), 1, n())
        stream = rng.choice(streams)
        seq = max(0, stream.limit - rng.randrange(6))
        version = self.one.state.credit.version
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
                hello = messages.Hello(
                    role,
                    "n",
                    inc,
                    spaces=rng.choice(("", "s", "s", "s", "s", "s", "t")),
                    rank=rng.choice((0, 0, 1, 2)),
                    world=rng.choice((1, 2, 2, 3, 0)),
                    version=n(),
                )
                return hello, (hello_payload.encode(self.intro()),)
            case 2 | 3 | 4:
                return self.unroll(inc), (b"x" * rng.choice((0, 100, 100, 100, 10_000)),)
            case 5:
                return messages.Ping(cast(Any, self.spans(3)), stats), ()
            case 6 | 7:
                return messages.Done(inc, n(), n(), cast(Any, self.spans(2))), ()
            case 8:
                return messages.Nack(inc, cast(Any, self.spans(2)), outcome, "r"), ()
            case 9:
                return messages.LearnerPing(inc, n(), n(), n(), cast(Any, self.spans(2)), stats), ()
            case 10:
                return messages.Bye(inc, rng.random() < 0.3, "t", cast(Any, self.spans(3))), ()
            case 11:
                return messages.Announce(n(), "l", "d", n(), n(), bytes(8 * rng.randrange(3))), ()
            case 12:
                return messages.Chunk(n(), n()), (b"x" * rng.randrange(20),)
            case _:
                return rng.choice(
                    [
                        messages.Get(n(), n(), n()),
                        messages.Watch(),
                        messages.Acting(n(), "d"),
                        messages.Limit(()),
                    ]
                ), ()

    def babble(self, times: int) -> None:
        one, rng = self.one, self.rng
        for _ in range(times):
            Broker.now += rng.choice((0.0, 0.01, 0.1, 0.1, 0.5))
            route = rng.choice((A, B, L, M, W))
            try:
                message, buffers = self.message(route)
                messages.encode(message, *buffers)
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
        one, state = self.one, self.one.state
        streams = [s for actor in state.actors.values() for s in actor.streams.values()]
        here = [entry for stream in streams for entry in stream.present.values()]
        leased = [e for session in state.leases.sessions.values() for e in session.leases.values()]
        queued = {id(entry) for entry in state.queue if not entry.gone and entry.tag < 0}
        assert one.ledger.unaccounted() == 0
        assert state.entries == len(here) == len(queued) + len(leased) == state.credit.present
        assert state.nbytes == sum(entry.nbytes for entry in here)
        assert state.credit.running == sum(s.running for s in streams if s.joined)
        assert 0 <= state.credit.version <= wire_limits.MAX_VERSION + 100
        assert one.server.status()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_said_the_books_balance(seed: int) -> None:
    Babbler(seed).babble(400)
