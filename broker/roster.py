"""Who is connected, and who may be. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.introduction import Introduction
from broker.wire import Hello, Refusal

ROLES = ("actor", "learner", "watcher", "evaluator")
_PLAYERS = ("actor", "evaluator")


@dataclass(slots=True)
class Peer:
    """Who stands behind a routing id."""

    route: bytes
    role: str
    name: str
    inc: int
    seen: float
    spaces: str = ""  # digest; "" = it has not made its environment yet
    said: str = ""  # the same in words
    acting: int = -1  # actor, evaluator: version it proved to act with
    stats: dict[str, float] = field(default_factory=dict)


class Roster:
    """Peers by route and by incarnation; a reconnect replaces the old route."""

    def __init__(self, run: str, differs: Callable[[dict[str, Any]], str | None]) -> None:
        self.run = run
        self.differs = differs  # names the first key in which a peer's run is another
        self.spaces = ("", "")  # digest and words, as the learner says them
        self._peers: dict[bytes, Peer] = {}
        self._routes: dict[int, bytes] = {}

    def get(self, route: bytes) -> Peer | None:
        return self._peers.get(route)

    def route(self, inc: int) -> bytes:
        """Where that incarnation is; b"" (nobody) when it is not here."""
        return self._routes.get(inc, b"")

    def join(self, peer: Peer) -> bool:
        """True = not known before."""
        old = self._routes.get(peer.inc)
        if old is not None:
            self._peers.pop(old, None)
        self._peers[peer.route] = peer
        self._routes[peer.inc] = peer.route
        return old is None

    def forget(self, inc: int) -> None:
        self._peers.pop(self._routes.pop(inc, b""), None)

    def of(self, role: str) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.role == role]

    def players(self) -> list[Peer]:
        """Who makes environments: samplers and evaluators."""
        return [peer for peer in self._peers.values() if peer.role in _PLAYERS]

    def sums(self) -> dict[str, float]:
        """How many samplers there are, and what all of them say they did."""
        actors = self.of("actor")
        sums: dict[str, float] = {}
        for peer in actors:
            for key, value in peer.stats.items():
                sums[key] = sums.get(key, 0.0) + value
        return {**sums, "count": len(actors)}

    def silent(self, since: float) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.seen < since]

    def behind(self, version: int) -> int:
        """Samplers that have not proved to act with these weights."""
        return sum(1 for peer in self.of("actor") if peer.acting < version)

    def foreign(self) -> list[Peer]:
        """Samplers and evaluators of another environment than the learner's."""
        return [peer for peer in self.players() if self._other_spaces(peer.spaces)]

    def objection(self, hello: Hello, said: Introduction) -> tuple[Refusal, str] | None:
        """Why this peer may not join; the words are for its user."""
        if hello.role not in ROLES:
            return Refusal.IDENTITY, f"no role is called {hello.role!r}"
        if hello.run not in ("", self.run):
            return Refusal.RUN, f"the broker runs {self.run!r}, you were started for {hello.run!r}"
        difference = self.differs(said.shared) if said.shared is not None else None
        if difference is not None:
            return Refusal.RUN, f"your run is another: {difference} (there = at the broker)"
        if hello.role == "learner" and not 0 <= hello.rank < hello.world:
            return Refusal.RANK, f"rank {hello.rank} of {hello.world}"
        if hello.role in _PLAYERS and self._other_spaces(hello.spaces):
            return Refusal.SPACES, self.space_words(said.spaces)
        return None

    def space_words(self, theirs: str) -> str:
        return f"the run's environment has {self.spaces[1]}; yours has {theirs}"

    def _other_spaces(self, spaces: str) -> bool:
        return bool(spaces and self.spaces[0] and spaces != self.spaces[0])
