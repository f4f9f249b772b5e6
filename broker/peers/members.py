"""Passes on what the samplers of a machine and the broker say to each other. Pure.

    sampler --unroll, answers-->  a bundle, at once              --> broker
            --HELLO----------->   the same; kept while there is no broker
            --these weights---->  one message for all who said it -->
            --beat------------>   a bundle, with the relay's beat -->
                                  its figures: summed, in the relay's beat

The relay may end at any moment: whatever matters stays with its sampler until it is acknowledged.
"""

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from headrace.broker.protocol.bundles import Member, bytes_of, kind_of, pack
from headrace.broker.protocol.messages import (
    Acting,
    Announce,
    Bye,
    Hello,
    MembersActing,
    Payload,
    Ping,
    Welcome,
    WireError,
    decode,
    encode,
    parts,
)
from headrace.broker.sampler_figures import SamplerTotals

# Connections remembered, oldest forgotten first. A sampler that connects again has another one.
_MOST: Final = 16_384
# Messages of a sampler's beat; most have one.
_MOST_BEATS: Final = 16
# Figures that may fall: they are those of the samplers that are here.
_NOW: Final = ("unacked", "unaccounted")

Answers: TypeAlias = Sequence[tuple[bytes, Sequence[Payload]]]  # the sampler's route, and frames


@dataclass(slots=True)
class _Sampler:
    """Describes one connection of a sampler."""

    number: int  # by which the broker knows it
    inc: int = 0  # as its HELLO says; 0 = it said none yet, or left
    heard_at: float = 0.0  # when it said anything last
    hello: Sequence[Payload] = ()  # not passed on: there was no broker
    beats: deque[list[Payload]] = field(default_factory=lambda: deque(maxlen=_MOST_BEATS))
    figures: Mapping[str, float] = field(default_factory=dict)  # of its last beat


class Members:
    """Keeps the samplers of one relay, and what of theirs waits for the broker."""

    def __init__(self) -> None:
        self.newest: Announce | None = None  # what was announced last
        self._by_route: dict[bytes, _Sampler] = {}  # oldest first
        self._routes: dict[int, bytes] = {}  # by number
        self._last = 0  # number given last
        self._waiting: list[Member] = []  # in order, for the next bundle
        # Their Acting that was not passed on yet, unread, by number.
        self._acting: dict[int, tuple[bytes, ...]] = {}
        self._totals = SamplerTotals()
        self._began = time.monotonic()

    def said(self, route: bytes, frames: Sequence[Payload], *, connected: bool) -> Answers:
        """Takes a sampler's message; returns what it hears at once. `connected`: there is a broker;
        without one only HELLO is kept, and the next beat says the rest again."""
        sampler, kind = self._sampler(route), kind_of(frames)
        sampler.heard_at = time.monotonic()
        if kind is Hello:
            self._greets(sampler, frames)
            sampler.hello = () if connected else frames
        elif kind is Ping:
            return self._beats(sampler, route, frames, connected=connected)
        elif kind is Bye:  # it said its last beat before
            sampler.beats.clear()
            sampler.inc, sampler.figures = 0, {}
        elif kind is Acting and connected:
            self._acting[sampler.number] = tuple(bytes(bytes_of(frame)) for frame in frames)
            return ()
        if connected:
            self._waiting.append((sampler.number, frames))
        return ()

    def heard_since(self, since: float) -> int:
        """Counts the samplers that have not left and said something since then."""
        return sum(1 for one in self._by_route.values() if one.inc and one.heard_at >= since)

    def connected(self) -> None:
        """Notes that a broker took the relay in: those who greeted meanwhile greet now."""
        for sampler in self._by_route.values():
            if sampler.hello:
                self._waiting.append((sampler.number, sampler.hello))
                sampler.hello = ()

    def resync(self, frames: Sequence[Payload]) -> Answers:
        """Returns what is sent because the broker is another one: it knows none of them, and who
        has not greeted yet does so anyway."""
        return [
            (route, frames) for route, one in self._by_route.items() if one.inc and not one.hello
        ]

    def take(self) -> list[list[Payload]]:
        """Returns the messages to the broker for what waits."""
        acting, self._acting = self._acting, {}
        waiting, self._waiting = self._waiting, []
        same: defaultdict[tuple[bytes, ...], list[int]] = defaultdict(list)
        for number, frames in acting.items():
            same[frames].append(number)
        messages = []
        for frames, numbers in same.items():
            try:
                said, _ = decode(frames)
            except WireError:  # the broker says what is wrong
                waiting += [(number, frames) for number in numbers]
                continue
            assert isinstance(said, Acting)
            messages += [
                encode(MembersActing(said.version, said.digest, some)) for some in parts(numbers)
            ]
        return [*messages, *pack(waiting)]

    def beat(self, since: float) -> tuple[dict[str, float], Sequence[Member]]:
        """Returns the figures of all samplers together, and their beats since the last time. Who
        said nothing since then is forgotten, as the broker forgets it."""
        for route in [route for route, one in self._by_route.items() if one.heard_at < since]:
            self._forget(route)
        figures = {name: value for name, value in self._totals.totals.items() if value}
        beats: list[Member] = []
        for sampler in self._by_route.values():
            beats += [(sampler.number, frames) for frames in sampler.beats]
            sampler.beats.clear()
            for name in _NOW:
                figures[name] = figures.get(name, 0.0) + sampler.figures.get(name, 0.0)
        return figures, beats

    def told(self, number: int, frames: Sequence[Payload]) -> Answers:
        """Returns what is sent for a message of the broker. A sampler that was welcomed hears of
        the newest weights next."""
        route = self._routes.get(number)
        if route is None:
            return ()
        if kind_of(frames) is Welcome and self.newest is not None:
            return (route, frames), (route, encode(self.newest))
        return ((route, frames),)

    def announced(self, announce: Announce) -> Answers:
        """Returns what is sent because weights were announced."""
        self.newest, frames = announce, encode(announce)
        return [(route, frames) for route, sampler in self._by_route.items() if sampler.inc]

    def _sampler(self, route: bytes) -> _Sampler:
        sampler = self._by_route.get(route)
        if sampler is None:
            if len(self._by_route) >= _MOST:
                self._forget(next(iter(self._by_route)))
            self._last += 1
            sampler = self._by_route[route] = _Sampler(self._last)
            self._routes[sampler.number] = route
        return sampler

    def _forget(self, route: bytes) -> None:
        del self._routes[self._by_route.pop(route).number]

    def _greets(self, sampler: _Sampler, frames: Sequence[Payload]) -> None:
        try:
            hello, _ = decode([bytes_of(frame) for frame in frames])
        except WireError:
            return  # the broker says what is wrong
        sampler.inc = getattr(hello, "inc", 0)
        for other in self._by_route.values():
            if other.inc == sampler.inc and other is not sampler:  # it has a connection anew
                other.inc, other.figures = 0, {}

    def _beats(
        self, sampler: _Sampler, route: bytes, frames: Sequence[Payload], *, connected: bool
    ) -> Answers:
        try:
            ping, _ = decode([bytes_of(frame) for frame in frames])
        except WireError:
            return ()
        assert isinstance(ping, Ping)
        if ping.stats and sampler.inc:
            age_s = time.monotonic() - self._began
            here = len(self._by_route)
            self._totals.add(sampler.inc, ping.stats, here=here, age_s=age_s)
            sampler.figures = ping.stats
        if connected:
            sampler.beats.append(encode(msgspec.structs.replace(ping, stats={})))
        if self.newest is not None and ping.version < self.newest.version:
            return ((route, encode(self.newest)),)  # it may have missed it
        return ()
