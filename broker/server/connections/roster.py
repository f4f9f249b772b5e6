"""The peers that are connected, and the rules for those that want to join. Pure."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from headrace.broker import sanitise
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello, Refusal
from headrace.broker.protocol.releases import PROTOCOL
from headrace.broker.server.connections.rate_limits import ConnectionBudget
from headrace.broker.server.connections.route import MemberRoute, Route
from headrace.broker.transport.bulk.sender import BulkSender

ROLES = ("actor", "learner", "watcher", "evaluator", "node")
_PLAYERS = ("actor", "evaluator")
# Beats of silence after which a peer is late.
_LATE_BEATS = 2.5
_MEMBERS_BEATS = 2.5  # as long as a beat is that of a sampler behind a node


@dataclass(slots=True)
class Peer:
    """Describes the peer behind a routing id."""

    route: Route
    role: str
    name: str
    inc: int
    heard_at: float
    spaces: str = ""  # digest; "" = it has not made its environment yet
    space_text: str = ""  # the same in words
    acting: int = -1  # actor, evaluator: version it proved to act with
    fetching: int = -1  # version that it asked for last and does not act with yet; -1 = none
    wanted_chunks: dict[int, None] = field(default_factory=dict)  # of it, to be sent in order
    base: int = -1  # version that it has, where it asks for changes; -1 = for whole chunks
    protocol: int = PROTOCOL  # that it speaks
    user: str = ""  # "role:name" of its key; "" = there are no keys
    budget: ConnectionBudget = field(default_factory=ConnectionBudget)
    stats: dict[str, float] = field(default_factory=dict)
    skew_s: float = 0.0  # how far its clock is from ours
    bulk: BulkSender | None = None  # what waits to be sent to it; None = nothing ever did
    address: str = ""  # where it connects from
    metrics_address: str = ""  # host:port; "" = it serves none

    def beat_s(self, beat_s: float) -> float:
        """Returns the seconds between its beats, by those of who connects itself. Behind a node it
        needs fewer: the line is seen to by the node's own."""
        return beat_s if isinstance(self.route, bytes) else _MEMBERS_BEATS * beat_s

    def is_late(self, beat_s: float, now: float) -> bool:
        """Tells whether it missed two beats. A watcher has none: it asks when it likes."""
        return self.role != "watcher" and now - self.heard_at > _LATE_BEATS * self.beat_s(beat_s)


class Roster:
    """Holds the peers by route and by incarnation; a reconnect replaces the old route."""

    def __init__(self, run: str, differs: Callable[[dict[str, Any]], str | None]) -> None:
        self.run = run
        self.most_ranks = 1  # unrolls of a batch: a rank beyond would have none
        self.brokers = 1  # that the run has
        self.differs = differs  # names the first key in which a peer's run is another
        self.spaces = ("", "")  # digest and words, as the learner says them
        self._peers: dict[Route, Peer] = {}
        self._routes: dict[int, Route] = {}
        # By a node's route: its samplers'.
        self._members: defaultdict[bytes, dict[Route, None]] = defaultdict(dict)

    def get(self, route: Route) -> Peer | None:
        return self._peers.get(route)

    @property
    def members(self) -> int:
        """Counts the samplers behind nodes."""
        return sum(map(len, self._members.values()))

    def reached_by(self, route: bytes) -> list[Peer]:
        """Returns the peers whose messages come and go by a connection: that of a peer itself, or
        a node's and its samplers'."""
        routes = (route, *self._members.get(route, ()))
        return [self._peers[one] for one in routes if one in self._peers]

    def route_of(self, inc: int) -> Route:
        """Returns where that incarnation is; b"" when it is not here."""
        return self._routes.get(inc, b"")

    def join(self, peer: Peer) -> bool:
        """Adds a peer; True = not known before."""
        old = self._routes.get(peer.inc)
        if old is not None:
            self._drop(old)
        before = self._peers.get(peer.route)
        if before is not None:  # another incarnation on the same connection: there is one at a time
            self._routes.pop(before.inc, None)
        self._peers[peer.route] = peer
        self._routes[peer.inc] = peer.route
        if isinstance(peer.route, MemberRoute):
            self._members[peer.route.node][peer.route] = None
        return old is None

    def forget(self, inc: int) -> None:
        self._drop(self._routes.pop(inc, b""))

    def _drop(self, route: Route) -> None:
        self._peers.pop(route, None)
        if isinstance(route, MemberRoute) and (others := self._members.get(route.node)):
            others.pop(route, None)
            if not others:
                del self._members[route.node]

    def __len__(self) -> int:
        return len(self._peers)

    def everybody(self) -> list[Peer]:
        """Copies the list of peers in one step: the thread that serves metrics asks too."""
        return list(self._peers.values())

    def with_role(self, role: str) -> list[Peer]:
        return [peer for peer in self.everybody() if peer.role == role]

    def players(self) -> list[Peer]:
        """Returns the peers that make environments: samplers and evaluators."""
        return [peer for peer in self.everybody() if peer.role in _PLAYERS]

    def sums(self) -> dict[str, float]:
        """Counts the samplers and sums up what they say they did, or their nodes for them."""
        total = sanitise.total([peer.stats for peer in self.say_for_samplers()])
        return {**total, "count": len(self.with_role("actor"))}

    def say_for_samplers(self) -> list[Peer]:
        """Returns who sends figures of samplers: they themselves, or their nodes."""
        return [peer for peer in self.everybody() if peer.role in ("actor", "node")]

    def acted(self) -> int:
        """Returns the version that most samplers say they act with (the median); -1 = none acts.

        One that lies, or comes back from long ago, moves it no further than to its neighbour's.
        """
        acting = self._acting()
        return median_low(acting) if acting else -1

    def _acting(self) -> list[int]:
        return [peer.acting for peer in self.with_role("actor") if peer.acting >= 0]

    def silent(self, since: float) -> list[Peer]:
        return [peer for peer in self.everybody() if peer.heard_at < since]

    def oldest(self) -> int:
        """Returns the oldest version that a sampler acts with; -1 = none acts."""
        return min(self._acting(), default=-1)

    def versions_behind(self, newest: int) -> int:
        """Counts the versions between the newest weights and the oldest a sampler acts with."""
        oldest = self.oldest()
        return max(0, newest - oldest) if oldest >= 0 else 0

    def behind(self, version: int) -> int:
        """Counts the samplers that have not proved to act with these weights."""
        return sum(1 for peer in self.with_role("actor") if peer.acting < version)

    def contradicts(self, hello: Hello) -> bool:
        """Tells whether a learner has another environment than the learners that are here: a rank
        that only says so would send all samplers home. Rank 0 may: it replaces those that were
        here."""
        here = (peer for peer in self.with_role("learner") if peer.inc != hello.inc)
        return hello.rank > 0 and any(peer.spaces != hello.spaces for peer in here)

    def in_other_environment(self) -> list[Peer]:
        """Returns the samplers and evaluators of another environment than the learner's."""
        return [peer for peer in self.players() if self._other_spaces(peer.spaces)]

    def refusal(
        self, hello: Hello, said: HelloPayload, user: str = "", owner: str | None = None
    ) -> tuple[Refusal, str] | None:
        """Returns why this peer may not join, in words for its user. `owner`: the user that said
        that incarnation before and is gone; a peer that is here is asked itself."""
        if hello.role not in ROLES:
            return Refusal.IDENTITY, f"no role is called {sanitise.words(hello.role)!r}"
        stranger = self._impostor(hello, user, owner)
        if stranger:
            return Refusal.IDENTITY, stranger
        if hello.run not in ("", self.run):
            return Refusal.RUN, f"the broker runs {self.run!r}, you were started for {hello.run!r}"
        difference = self.differs(said.shared) if said.shared is not None else None
        if difference is not None:
            return Refusal.RUN, f"your run is another: {difference} (there = at the broker)"
        if hello.role == "learner" and said.brokers != self.brokers:
            return Refusal.RUN, (
                f"your run has broker.shards = {said.brokers}, this broker was started with"
                f" {self.brokers}"
            )
        if hello.role == "learner" and not 0 <= hello.rank < hello.world <= self.most_ranks:
            return Refusal.RANK, (
                f"rank {hello.rank} of {hello.world}; a batch has {self.most_ranks} unrolls"
            )
        if hello.role == "learner" and self.contradicts(hello):
            return Refusal.SPACES, self.space_words(said.spaces)
        if hello.role in _PLAYERS and self._other_spaces(hello.spaces):
            return Refusal.SPACES, self.space_words(said.spaces)
        return None

    def _impostor(self, hello: Hello, user: str, owner: str | None) -> str:
        """Returns what is wrong with who the peer says it is; "" = nothing.

        Without keys anyone who knows an incarnation may take its place: a reconnect looks the same.
        It is 63 random bits that only its broker and the learners hear.
        """
        own = user.partition(":")[0]
        # A node fetches for samplers, with their key.
        if user and hello.role not in ("watcher", own, "node" if own == "actor" else own):
            return f"the key is one of {user!r}; it cannot speak as {hello.role}"
        here = self._peers.get(self._routes.get(hello.inc, b""))
        if here is not None and here.role != hello.role:
            return f"a {here.role} has this incarnation; start again"
        first = owner if here is None else here.user
        if first is not None and first != user and hello.role != "watcher":
            return "this incarnation belongs to another key; start again"
        return ""

    def space_words(self, theirs: str) -> str:
        return f"the run's environment has {self.spaces[1]}; yours has {theirs}"

    def _other_spaces(self, spaces: str) -> bool:
        return bool(spaces and self.spaces[0] and spaces != self.spaces[0])
