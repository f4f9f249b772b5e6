"""HELLO: which peers may join, and what the ledger hears of it. A peer whose key is withdrawn goes.

With keys a connection's user is "role:name"; the role must be the one that HELLO says, and an
incarnation belongs to the user that said it first. Without keys every user is "".
"""

import ipaddress
from typing import Final

import msgspec
import zmq

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import hello_payload, releases
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello, Refusal
from headrace.broker.protocol.releases import PROTOCOL
from headrace.broker.server.connections.rate_limits import ConnectionBudget, RateLimits
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.connections.route import Route
from headrace.broker.server.connections.takeover import Takeover
from headrace.broker.transport.key_gate import Gate

# Of the words about its spaces that are kept: what a refusal tells (replies.py).
_WORDS: Final = 1000


def origin_of(frame: zmq.Frame) -> tuple[str, str]:
    """Returns whose key the connection came with, as the Gate told libzmq, and its address."""
    try:
        user = str(frame.get("User-Id"))
    except zmq.ZMQError:
        user = ""
    return user, _address_of(frame)


def _address_of(frame: zmq.Frame) -> str:
    """Returns where the connection comes from. Inside one machine libzmq says who, not where."""
    try:
        address = ipaddress.ip_address(str(frame.get("Peer-Address")))
    except (zmq.ZMQError, ValueError):
        return "127.0.0.1"
    plain = getattr(address, "ipv4_mapped", None) or address
    return f"[{plain}]" if plain.version == 6 else str(plain)


class Joining:
    """Decides who may join, and tells the ledger. No sockets: the server sends the decisions."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        limits: RateLimits,
        gate: Gate | None,
        takeover: Takeover,
        run: releases.Sections,
    ) -> None:
        self._takeover = takeover
        self._run = run
        self._ledger = ledger
        self._roster = roster
        self._limits = limits
        self._gate = gate
        self._crowd = 0  # streams at the last look, if more than the window; -1 = warned
        self.moved = 0  # HELLOs of an incarnation that was here, from another connection
        roster.most_ranks = ledger.state.batch

    def refusal(
        self,
        hello: Hello,
        intro: HelloPayload,
        user: str,
        protocol: int,
        *,
        published: int,
        now: float,
        behind_node: bool = False,
    ) -> tuple[Refusal, str] | None:
        """Returns why a peer may not join, for its user: its key, the room, what it says it is."""
        if self._gate is not None and not self._gate.allowed(user):
            return Refusal.IDENTITY, f"the key of {sanitise.words(user)!r} was withdrawn"
        known = bool(self._roster.route_of(hello.inc))
        members = self._roster.members
        crowded = self._limits.no_room_reason(
            members if behind_node else len(self._roster) - members,
            known=known,
            streams=len(intro.streams),
            behind_node=behind_node,
        )
        if crowded:
            return Refusal.IDENTITY, crowded
        actor = self._ledger.state.actors.get(hello.inc)
        if actor is not None and actor.expelled:
            return Refusal.UNROLLS, actor.expelled
        if unknown := releases.unknown_setting(self._run, protocol, hello.role):
            return Refusal.PROTOCOL, unknown
        if intro.shared is not None:
            full = releases.completed(intro.shared, self._run, protocol)
            intro = msgspec.structs.replace(intro, shared=full)
        owner = actor.user if actor is not None else None
        objection = self._roster.refusal(hello, intro, user, owner)
        if objection is None and hello.role == "learner":
            objection = self._takeover.refusal(hello, published=published, now=now)
        return objection

    def join(
        self,
        route: Route,
        hello: Hello,
        intro: HelloPayload,
        user: str,
        protocol: int,
        *,
        address: str,
        budget: ConnectionBudget,
        now: float,
    ) -> tuple[Peer, str]:
        """Adds the peer to the roster; returns it, and in words what is new about it."""
        self._limits.forget_unknown(route)
        moved = self._roster.route_of(hello.inc) not in (b"", route)
        self.moved += moved
        peer = Peer(
            route,
            hello.role,
            sanitise.words(hello.name),
            hello.inc,
            now,
            hello.spaces,
            intro.spaces[:_WORDS],
            hello.version,
            protocol=protocol,
            user=user,
            budget=budget,
            address=address,
        )
        if intro.port:  # only at its own address: no peer may send Prometheus elsewhere
            peer.metrics_address = f"{address}:{intro.port}"
        new = self._roster.join(peer)
        news = "joins" if new else "goes on from another connection" if moved else ""
        return peer, f"{news}, by protocol {protocol}" if news and protocol < PROTOCOL else news

    def welcomed(self, peer: Peer) -> bytes:
        """Returns the run as that peer may know it, for its WELCOME."""
        return hello_payload.pack(releases.known(self._run, peer.protocol))

    def enter(
        self, peer: Peer, hello: Hello, intro: HelloPayload, *, published: int
    ) -> tuple[int, list[tuple[Peer, Refusal, str]]]:
        """Returns the version to continue at, and the peers that must go: those with another
        environment than the learner's, or the ranks of another learner."""
        if peer.role == "learner":
            return self._learner(peer, hello, intro, published)
        version = self._ledger.state.credit.version
        if peer.role == "actor" and peer.spaces and intro.streams:
            self._ledger.actor_hello(
                peer.inc,
                peer.name,
                intro.streams,
                now=peer.heard_at,
                user=peer.user,
                acting=peer.acting,
            )
            if not self._ledger.versions.first_rank:
                # It may have newer weights than a broker that lost its memory, and keeps them.
                version = max(version, hello.version)
        return version, []

    def _learner(
        self, peer: Peer, hello: Hello, intro: HelloPayload, published: int
    ) -> tuple[int, list[tuple[Peer, Refusal, str]]]:
        out = [(rival, Refusal.TAKEN, text) for rival, text in self._takeover.replace_rivals(hello)]
        self._roster.spaces = (hello.spaces, intro.spaces)
        self._ledger.state.unroll_bytes = intro.unroll_bytes
        self._limits.set_unroll_size(intro.unroll_bytes)
        foreign = self._roster.in_other_environment()
        for other in foreign:
            self._ledger.actor_bye(other.inc, ())
            self._roster.forget(other.inc)
            out.append((other, Refusal.SPACES, self._roster.space_words(other.space_text)))
        version = self._ledger.learner_hello(
            hello, intro, now=peer.heard_at, acted=self._roster.acted(), published=published
        )
        return version, out

    def heard(self, peer: Peer, now: float) -> bool:
        """Notes that the peer was heard now; False = the ledger gave it up meanwhile."""
        peer.heard_at = now
        if peer.role == "actor" and peer.spaces:
            return self._ledger.heard(peer.inc, now)
        if peer.role == "learner":
            return self._ledger.learner_heard(peer.inc, now)
        return True

    def streams_warning(self) -> str:
        """Returns a warning, once, when there are more streams than places and no more come in."""
        credit, alone = self._ledger.state.credit, self._ledger.state.alone
        last, now = self._crowd, credit.streams if alone and credit.streams > credit.window else 0
        if last < 0 or not now or now != last:
            self._crowd = last if last < 0 else now
            return ""
        self._crowd = -1
        return (
            f"{now} streams (groups of environments) share {credit.window} places, so"
            f" {now - credit.window} of them always wait: places are (pacing.max_lag + 1) x"
            " pacing.batch_unrolls; raise one of these, or let fewer groups play (actor.groups)"
        )

    def remove_withdrawn(self) -> list[Peer]:
        """Removes the peers whose key is no longer in the folder, and frees what they held."""
        gate = self._gate
        if gate is None:
            return []
        out = [peer for peer in self._roster.everybody() if not gate.allowed(peer.user)]
        for peer in out:
            self._ledger.actor_bye(peer.inc, ())
            self._ledger.learner_bye(peer.inc, final=False)
            self._roster.forget(peer.inc)
        return out
