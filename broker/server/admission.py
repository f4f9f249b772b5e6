"""Answers HELLO: lets a peer in with WELCOME, or refuses it with a reason."""

import logging
from typing import NamedTuple

from headrace.broker import sanitise
from headrace.broker.config import BrokerConfig
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Buffer, Hello, Refusal
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.joining import Joining
from headrace.broker.server.connections.rate_limits import (
    ConnectionBudget,
    RateLimits,
    cost_in_messages,
)
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.connections.route import MemberRoute, Route
from headrace.broker.server.weight_messages import WeightMessages


class Caller(NamedTuple):
    """Describes who says HELLO, as far as its connection tells."""

    route: Route
    budget: ConnectionBudget
    protocol: int
    user: str  # of its key; "" = there are no keys
    address: str


class Admission:
    """Lets peers in: each is told the run, and who has to go for it is told so."""

    def __init__(
        self,
        ledger: Ledger,
        joining: Joining,
        weights: WeightMessages,
        limits: RateLimits,
        counters: Counters,
        roster: Roster,
        config: BrokerConfig,
        *,
        inc: int,
        announce: str,
    ) -> None:
        self._ledger = ledger
        self._joining = joining
        self._weights = weights
        self._replies = weights.replies
        self._peer_log = weights.peer_log
        self._limits = limits
        self._counters = counters
        self._roster = roster
        self._config = config
        self._inc = inc  # of the broker
        self._announce = announce  # where weight announcements go out

    def hello(self, caller: Caller, hello: Hello, body: Buffer, now: float) -> None:
        if isinstance(caller.route, MemberRoute) and hello.role != "actor":
            self._counters.dropped["unexpected"] += 1
            return
        if not self._limits.takes_hello(caller.budget, now):
            self._counters.dropped["hello"] += 1
            return
        try:
            intro = hello_payload.decode(body) if body else HelloPayload()
        except messages.Malformed:
            self._counters.dropped["malformed"] += 1
            return
        published = self._weights.fetch.version
        objection = self._joining.refusal(
            hello,
            intro,
            caller.user,
            caller.protocol,
            published=published,
            now=now,
            behind_node=isinstance(caller.route, MemberRoute),
        )
        if objection is not None:
            who = sanitise.words(f"{hello.role} {hello.name}")
            if objection[0] is not Refusal.WAIT:
                self._peer_log.log("refused %s: %s", who, sanitise.words(objection[1], 1000))
            self._replies.refuse(caller.route, *objection, caller.protocol)
            return
        self._enter(caller, hello, intro, published, now)

    def _enter(
        self, caller: Caller, hello: Hello, intro: HelloPayload, published: int, now: float
    ) -> None:
        peer, news = self._joining.join(
            caller.route,
            hello,
            intro,
            caller.user,
            caller.protocol,
            address=caller.address,
            budget=caller.budget,
            now=now,
        )
        if news:
            self._peer_log.log("%s %s %s", peer.role, peer.name, news, level=logging.INFO)
        if self._weights.is_publisher(peer.inc):
            self._weights.fetch.reconnected()
        version, out = self._joining.enter(peer, hello, intro, published=published)
        for other, code, text in out:
            if code is Refusal.TAKEN:
                self._peer_log.log("%s is out: %s", other.name, text)
            self._replies.refuse(other.route, code, text, other.protocol)
        self._welcome(peer, version)
        if peer.role == "actor" and peer.spaces:
            self._ask_for_lost(peer, intro, now)
        if peer.role == "actor" and hello.version < 0:  # it has no weights yet
            self._weights.tell_past(peer)

    def _ask_for_lost(self, peer: Peer, intro: HelloPayload, now: float) -> None:
        """Asks a sampler, without waiting for its beat, for the unrolls that are not here. Until
        learners have said what they hold these may be there."""
        unacked = [(s, lo, hi) for s, *_, ranges in intro.streams for lo, hi in ranges]
        if not unacked or not self._ledger.dispatches(now):
            return
        self._limits.charge(peer.budget, messages=cost_in_messages(unacked))
        version = self._ledger.state.credit.version
        for lost in messages.parts(self._ledger.ping(peer.inc, unacked)):
            self._replies.send(peer.route, messages.Pong(self._inc, version, lost))

    def _welcome(self, peer: Peer, version: int) -> None:
        run, config = self._roster.run, self._config
        # At least four in a lease, where those of the others are.
        beat_s = max(config.beat_s, min(peer.beat_s(config.beat_s), config.lease_s / 4))
        welcome = messages.Welcome(self._inc, run, beat_s, config.lease_s, self._announce, version)
        if not self._replies.send(peer.route, welcome, self._joining.welcomed(peer)):
            # Else it would never be told: its next beat brings RESYNC.
            self._roster.forget(peer.inc)
