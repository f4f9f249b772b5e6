"""The broker: sockets around the ledger. It decides nothing that the ledger could decide.

    router loop   consumes every peer's messages, produces answers and what the ledger's pump says
    xpub loop     consumes subscriptions, answers each with the current announcement
    tick loop     consumes time: expired leases, metrics

What a socket does not take is dropped, because the next beat repairs it (LIMIT, ACK, PONG); bulk
(DELIVER, chunks) waits at its peer for room on the line.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

import zmq

from headrace.broker.config import BrokerConfig
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.trained_shares import TrainedShares
from headrace.broker.protocol import bundles, messages, releases
from headrace.broker.protocol.messages import Buffer, Bundle, Hello, Message, Refusal
from headrace.broker.server import send_decisions
from headrace.broker.server.admission import Admission, Caller
from headrace.broker.server.bulk_arrivals import CARRIAGE, BulkArrivals
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.joining import Joining, origin_of
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.rate_limits import RateLimits
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import ROLES, Peer, Roster
from headrace.broker.server.connections.route import MemberRoute, Route
from headrace.broker.server.connections.takeover import Takeover
from headrace.broker.server.memory_guard import MemoryGuard
from headrace.broker.server.peer_messages import PeerMessages
from headrace.broker.server.status import RunStatus
from headrace.broker.server.unroll_messages import UnrollMessages
from headrace.broker.server.weight_messages import WeightMessages
from headrace.broker.transport.key_gate import Gate
from headrace.broker.transport.mailbox import Mailbox

log = logging.getLogger(__name__)


class Server:
    """Runs one run's broker: its sockets, loops and message handlers."""

    def __init__(
        self,
        config: BrokerConfig,
        ledger: Ledger,
        counters: Counters,
        *,
        inc: int,
        shared: dict[str, Any],
        roster: Roster,
        announce: str,
        router: "zmq.Socket[bytes]",
        publisher: "zmq.Socket[bytes]",
        gate: Gate | None = None,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.counters = counters
        self.inc = inc
        self.roster = roster
        self.gate = gate  # whose key a connection came with; None = there are no keys
        limits = self.limits = RateLimits(config)
        queue_bytes = ledger.state.queue_bytes
        self.memory = MemoryGuard(queue_bytes=queue_bytes)
        mail = self._router = Mailbox(router)
        replies = self._replies = Replies(mail, roster, counters, config.lease_s, queue_bytes)
        self._xpub = Mailbox(publisher)
        self.peer_log = PeerLog(limits, counters)
        self.weights = WeightMessages(
            ledger, limits, self.peer_log, replies, roster, announce=self._publish, inc=inc
        )
        self.takeover = Takeover(ledger, roster, replies, config.beat_s, self.weights.pong)
        self.joining = Joining(ledger, roster, limits, gate, self.takeover, shared)
        self._admission = Admission(
            ledger,
            self.joining,
            self.weights,
            limits,
            counters,
            roster,
            config,
            inc=inc,
            announce=announce,
        )
        self.bulk_arrivals = BulkArrivals(ledger, limits, self.weights, self._take)
        self.trained_shares = TrainedShares()
        self.run_status = RunStatus(ledger, roster, self.weights, inc=inc, beat_s=config.beat_s)
        self.status = self.run_status.status
        unrolls = UnrollMessages(ledger, counters, self.peer_log)
        own = PeerMessages(
            ledger, roster, limits, self.weights, self.run_status, self.takeover, inc=inc
        )
        # By message: the roles that may send it, and its handler.
        samplers, players, learners = {"actor"}, {"actor", "evaluator", "node"}, {"learner"}
        anyone = set(ROLES)
        self._handlers: dict[type[Message], tuple[Set[str], Callable[[Peer, Any, Any], None]]] = {
            messages.Unroll: (samplers, unrolls.unroll),
            messages.Ping: (players, own.ping),
            messages.Returned: (samplers, unrolls.returned),
            messages.Acting: (players, self.weights.acting),
            messages.Bye: (anyone, own.bye),
            messages.Done: (learners, unrolls.done),
            messages.Nack: (learners, unrolls.nack),
            messages.LearnerPing: (learners, own.learner_ping),
            messages.Announce: (learners, self.weights.announced),
            **dict.fromkeys((messages.Chunk, messages.Delta), (learners, self.weights.chunk)),
            # A watcher reads numbers.
            **dict.fromkeys((messages.Get, messages.GetDelta), (players, self.weights.get)),
            **dict.fromkeys(CARRIAGE, (anyone, self.bulk_arrivals.carry)),
            messages.Watch: (anyone, own.watch),
            messages.Trouble: (anyone - {"watcher"}, own.trouble),
            Bundle: ({"node"}, self._take_bundle),
            messages.MembersActing: ({"node"}, self._members_act),
        }

    async def run(self) -> None:
        """Runs the loops until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._router_loop(), name="router")
                group.create_task(self._xpub_loop(), name="xpub")
                group.create_task(self._tick_loop(), name="tick")
                if self.gate is not None:
                    group.create_task(self.gate.run(), name="gate")
        finally:
            self._router.close(linger_ms=200)
            self._xpub.close()

    # ---- loops ----------------------------------------------------------------------------------

    async def _router_loop(self) -> None:
        while True:
            for frames in await self._router.receive(self.config.beat_s):
                self._receive(frames)
            self._pump()

    async def _xpub_loop(self) -> None:
        while True:
            joined = False
            for frames in await self._xpub.receive(3600.0):
                joined |= bytes(frames[0].buffer[:1]) == b"\x01"
            blob = self.weights.blob
            if joined and blob is not None:
                self._publish(blob.announce)

    async def _tick_loop(self) -> None:
        pause = self.config.beat_s / 4
        while True:
            due = time.monotonic() + pause
            await asyncio.sleep(pause)
            now = time.monotonic()
            self.counters.loop_lag.add(max(0.0, now - due))
            self.memory.check(
                held=self.weights.nbytes, actors=self.ledger.state.actors, peers=len(self.roster)
            )
            self._sweep(now)
            self._pump()

    def _sweep(self, now: float) -> None:
        """Removes the peers that fell silent or whose key was withdrawn; what they held is free."""
        for actor in self.ledger.tick(now):
            self.peer_log.log("sampler %s fell silent; its credit returns", actor.name)
            self.roster.forget(actor.inc)
        for peer in self.roster.silent(now - 3 * self.config.lease_s):
            self.roster.forget(peer.inc)
        self.bulk_arrivals.sweep(self.roster)
        self.trained_shares.update(self.ledger.state.streams(), now)
        for peer in self.joining.remove_withdrawn():
            log.warning("the key of %s was withdrawn; %s is out", peer.user, peer.name)
        if crowd := self.joining.streams_warning():
            log.warning("%s", crowd)

    # ---- receiving ------------------------------------------------------------------------------

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        buffers = [frame.buffer for frame in frames[1:]]
        self._read(frames[0].bytes, frames[1:], buffers, sum(map(len, frames)))

    def _take_bundle(self, node: Peer, bundle: Bundle, buffers: Sequence[Buffer]) -> None:
        assert isinstance(node.route, bytes), "a node is behind no other"
        try:
            for member, frames in bundles.split(bundle, buffers):
                size = sum(map(len, frames))
                self._read(MemberRoute(node.route, member), frames, frames, size, node)
        except messages.Malformed:
            self.counters.dropped["malformed"] += 1

    def _members_act(self, node: Peer, message: messages.MembersActing, _: object) -> None:
        """Notes what samplers behind a node act with; who is not known is told at its beat."""
        assert isinstance(node.route, bytes), "a node is behind no other"
        self.limits.charge(node.budget, messages=len(message.members) // 8)
        for member in message.members:
            peer = self.roster.get(MemberRoute(node.route, member))
            if peer is not None and self.joining.heard(peer, node.heard_at):
                self.weights.acting(peer, message, ())

    def _read(
        self,
        route: Route,
        frames: Sequence[Any],
        buffers: Sequence[Buffer],
        size: int,
        node: Peer | None = None,
    ) -> None:
        """Handles a message, of a connection or, with `node`, of a sampler behind it. `frames` are
        kept, `buffers` are what stands in them."""
        now = time.monotonic()
        peer = self.roster.get(route)
        budget = peer.budget if peer is not None else self.limits.unknown_budget(route)
        if not self.limits.takes_message(budget, size, now):
            self.counters.dropped["rate"] += 1
            return
        try:
            message, views = messages.decode(buffers)
        except messages.WireError as error:
            theirs = error.theirs if isinstance(error, messages.OtherProtocol) else None
            self.counters.dropped["malformed" if theirs is None else "protocol"] += 1
            if theirs is not None and self.limits.may_answer(budget, now):
                self._replies.refuse(route, Refusal.PROTOCOL, releases.refusal(theirs), theirs)
            return
        kind, protocol = type(message), buffers[0][2]
        self.counters.count("in", kind, size - (sum(map(len, views)) if kind is Bundle else 0))
        if not self.limits.has_honest_size(message, views, size):
            self.peer_log.dropped("size", "a %s of %d bytes", kind.__name__, size)
        elif isinstance(message, Hello):
            user, address = origin_of(frames[0]) if node is None else (node.user, node.address)
            user = user if self.gate is not None else ""
            caller = Caller(route, budget, protocol, user, address)
            self._admission.hello(caller, message, views[0] if views else b"", now)
        elif peer is None or not (self.joining.heard(peer, now) or kind is messages.Bye):
            self.counters.dropped["unknown"] += 1
            if self.limits.may_answer(budget, now):
                self._replies.send(route, messages.Resync(self.inc), protocol=protocol)
        else:
            # Unrolls stay frames: they go out again as they came, without a copy.
            self._take(peer, message, frames[2:] if kind is messages.Unroll else views)

    def _take(self, peer: Peer, message: Message, buffers: Sequence[Any]) -> None:
        """Handles a whole message of a peer that is here."""
        roles, handler = self._handlers.get(type(message), (set(), None))
        if handler is None or peer.role not in roles:
            self.counters.dropped["unexpected"] += 1
        elif getattr(message, "inc", peer.inc) != peer.inc:
            self.peer_log.dropped("identity", "%s speaks as another", peer.name)
        else:
            handler(peer, message, buffers)

    # ---- sending --------------------------------------------------------------------------------

    def _publish(self, announce: messages.Announce) -> None:
        """Sends an announcement to all subscribers, who understand the oldest protocol alike."""
        self._xpub.send(releases.spoken(messages.encode(announce), releases.OLDEST))

    def _pump(self) -> None:
        send_decisions.send(
            self.ledger.decide(time.monotonic()),
            ledger=self.ledger,
            roster=self.roster,
            replies=self._replies,
            counters=self.counters,
            peer_log=self.peer_log,
        )
        self._replies.flush()
