"""The broker: sockets around the ledger. Decides nothing that the ledger could decide.

    router loop   consumes every peer's messages, produces answers and what the ledger's pump says
    xpub loop     consumes subscriptions, answers each with the current announcement
    tick loop     consumes time: expired leases, metrics

Nothing is queued here: what a socket does not take is dropped, because the next beat repairs it
(LIMIT, ACK, PONG, chunks), or goes back into the ledger (DELIVER).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

import zmq

from broker import door, introduction, said, wire
from broker.complaints import Complaints
from broker.config import BrokerConfig
from broker.door import Budget, Door
from broker.introduction import Introduction
from broker.ledger import BeyondCreditError, Ledger
from broker.mailbox import Mailbox
from broker.memory import MemoryWatch
from broker.metrics import BrokerMetrics
from broker.newest import Newest
from broker.reception import Reception, user_of
from broker.roster import ROLES, Peer, Roster
from broker.security import Gate
from broker.view import View
from broker.wire import Buffer, Message, Outcome, Payload, Refusal

log = logging.getLogger(__name__)

_NOBODY: tuple[Set[str], None] = (set(), None)


class Server:
    """One run's broker."""

    def __init__(
        self,
        config: BrokerConfig,
        ledger: Ledger,
        metrics: BrokerMetrics,
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
        self.metrics = metrics
        self.inc = inc
        self._shared = introduction.pack(shared)  # the run, as every peer must see it
        self.roster = roster
        self.gate = gate  # whose key a connection came with; None = there are no keys
        self.door = Door(config)
        self.memory = MemoryWatch(queue_bytes=ledger.book.queue_bytes)
        self.announce = announce  # where weight announcements go out
        self.reception = Reception(ledger, roster, self.door, gate)
        self.newest = Newest()
        self.weights = self.newest.fetch
        self.complaints = Complaints(self.door, metrics)
        self.view = View(ledger, roster, self.weights)
        self.status = self.view.status  # numbers for whoever looks
        self._router = Mailbox(router)
        self._xpub = Mailbox(publisher)
        # Who may say it, and what it does.
        samplers, players, learners = {"actor"}, {"actor", "evaluator", "node"}, {"learner"}
        anyone = set(ROLES)
        self._handlers: dict[type[Message], tuple[Set[str], Callable[[Peer, Any, Any], None]]] = {
            wire.Unroll: (samplers, self._unroll),
            wire.Ping: (players, self._ping),
            wire.Acting: (players, self._acting),
            wire.Bye: (anyone, self._bye),
            wire.Done: (learners, self._done),
            wire.Nack: (learners, self._nack),
            wire.LearnerPing: (learners, self._learner_ping),
            wire.Announce: (learners, self._announced),
            wire.Chunk: (learners, self._chunk),
            wire.Get: (anyone, self._get),
            wire.Watch: (anyone, self._watch),
        }

    async def run(self) -> None:
        """Until cancelled."""
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
            if joined and self.newest.blob is not None:
                self._xpub.send(wire.encode(self.newest.blob.announce))

    async def _tick_loop(self) -> None:
        pause = self.config.beat_s / 4
        while True:
            due = time.monotonic() + pause
            await asyncio.sleep(pause)
            now = time.monotonic()
            self.metrics.loop_lag.observe(max(0.0, now - due))
            self.memory.check(weights=self.weights.nbytes, peers=len(self.roster))
            self._sweep(now)
            self._pump()

    def _sweep(self, now: float) -> None:
        """Who fell silent, or whose key was withdrawn, is out; what they held is free."""
        for actor in self.ledger.tick(now):
            self.complaints.say("sampler %s fell silent; its credit returns", actor.name)
            self.roster.forget(actor.inc)
        for peer in self.roster.silent(now - 3 * self.config.lease_s):
            self.roster.forget(peer.inc)
        for peer in self.reception.withdrawn():
            log.warning("the key of %s was withdrawn; %s is out", peer.user, peer.name)

    # ---- receiving ------------------------------------------------------------------------------

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        now = time.monotonic()
        route = frames[0].bytes
        size = sum(map(len, frames))
        peer = self.roster.get(route)
        budget = peer.budget if peer is not None else self.door.stranger(route)
        if not self.door.admits(budget, size, now):
            self.metrics.errors["rate"] += 1
            return
        try:
            message, views = wire.decode([frame.buffer for frame in frames[1:]])
        except wire.WireError as error:
            other = isinstance(error, wire.OtherProtocol)
            self.metrics.errors["protocol" if other else "malformed"] += 1
            if other and self.door.answers(budget, now):
                self._refuse(route, Refusal.PROTOCOL, str(error))
            return
        self._count("in", message, size)
        kind = type(message)
        if not self.door.fits(message, views, size):
            self.complaints.about("size", "a %s of %d bytes", kind.__name__, size)
        elif isinstance(message, wire.Hello):
            self._hello(frames[1], route, budget, message, views[0] if views else b"")
        elif peer is None or not (self.reception.alive(peer, now) or kind is wire.Bye):
            self.metrics.errors["unknown"] += 1
            if self.door.answers(budget, now):
                self._send(route, wire.Resync(self.inc))
        else:
            roles, handler = self._handlers.get(kind, _NOBODY)
            if handler is None or peer.role not in roles:
                self.metrics.errors["unexpected"] += 1
            elif getattr(message, "inc", peer.inc) != peer.inc:
                self.complaints.about("identity", "%s speaks as another", peer.name)
            else:
                # Unrolls stay frames: they go out again as they came, without a copy.
                handler(peer, message, frames[3:] if kind is wire.Unroll else views)

    def _hello(
        self, frame: zmq.Frame, route: bytes, budget: Budget, hello: wire.Hello, body: Buffer
    ) -> None:
        now = time.monotonic()
        if not self.door.greets(budget, now):
            self.metrics.errors["hello"] += 1
            return
        try:
            intro = introduction.decode(body) if body else Introduction()
        except wire.Malformed:
            self.metrics.errors["malformed"] += 1
            return
        user = user_of(frame) if self.gate is not None else ""
        objection = self.reception.objection(hello, intro, user)
        if objection is not None:
            who = said.words(f"{hello.role} {hello.name}")
            self.complaints.say("refused %s: %s", who, said.words(objection[1], 1000))
            self._refuse(route, *objection)
            return
        peer, news = self.reception.join(route, hello, intro, user=user, budget=budget, now=now)
        if news:
            self.complaints.say("%s %s %s", peer.role, peer.name, news, level=logging.INFO)
        if self.newest.came_from(peer.inc):
            self.weights.reconnected()
        version, foreign = self.reception.enter(peer, hello, intro, published=self.weights.version)
        for other in foreign:
            self._refuse(other.route, Refusal.SPACES, self.roster.space_words(other.said))
        self._welcome(peer, version)

    # ---- one method a message -------------------------------------------------------------------

    def _unroll(self, peer: Peer, message: wire.Unroll, buffers: Sequence[zmq.Frame]) -> None:
        unroll = said.honest(message)
        if unroll is None:
            self.complaints.about("numbers", "%s: its versions are reversed", peer.name)
            return
        size = sum(map(len, buffers))
        self.metrics.unroll_bytes += size
        try:
            if not peer.spaces:
                raise BeyondCreditError("it has no environment")
            self.ledger.unroll(unroll, buffers, size)
        except BeyondCreditError as error:
            self.complaints.about("credit", "%s: not granted: %s", peer.name, error)

    def _ping(self, peer: Peer, message: wire.Ping, _: Sequence[Buffer]) -> None:
        if not peer.spaces and peer.role != "node":
            return
        peer.stats = said.numbers(message.stats)
        lost = self.ledger.missing(peer.inc, message.unacked) if peer.role == "actor" else ()
        self.door.charge(peer.budget, messages=door.work(message.unacked))
        missing = lost[: wire.MAX_ENTRIES]
        self._send(peer.route, wire.Pong(self.inc, self.ledger.book.credit.version, missing))
        if peer.acting != self.weights.version and self.newest.blob is not None:
            self._send(peer.route, self.newest.blob.announce)  # an announcement got lost
        if self.ledger.over:
            self._send(peer.route, wire.Bye(self.inc, True, "the learner reached its goal"))

    def _acting(self, peer: Peer, message: wire.Acting, _: Sequence[Buffer]) -> None:
        blob = self.newest.blob
        known = blob is not None and message.version == blob.announce.version
        if known and blob is not None and message.digest != blob.announce.digest:
            self.complaints.say("%s: other weights than version %d", peer.name, message.version)
            return
        peer.acting = message.version

    def _bye(self, peer: Peer, message: wire.Bye, _: Sequence[Buffer]) -> None:
        last = peer.role != "actor" or len(message.abandoned) < wire.MAX_ENTRIES
        self.door.charge(peer.budget, messages=door.work(message.abandoned))
        if peer.role == "actor":
            self.ledger.actor_bye(peer.inc, message.abandoned, last=last)
        elif peer.role == "learner" and self.ledger.learner_bye(peer.inc, final=message.final):
            self._farewell(message)
        if last:  # else the next BYE names the rest
            text = said.words(message.text)
            self.complaints.say("%s %s leaves: %s", peer.role, peer.name, text, level=logging.INFO)
            self.roster.forget(peer.inc)

    def _farewell(self, bye: wire.Bye) -> None:
        text = said.words(bye.text)
        for player in self.roster.players() if bye.final else ():
            if player.role == "evaluator" and self.newest.blob is not None:
                self._send(player.route, self.newest.blob.announce)  # they evaluate the last ones
            self._send(player.route, wire.Bye(self.inc, True, text))

    def _done(self, peer: Peer, message: wire.Done, _: Sequence[Buffer]) -> None:
        self.ledger.done(peer.inc, message.tags)
        self.ledger.learner_heard(peer.inc, peer.seen, version=message.version, want=message.want)

    def _nack(self, peer: Peer, message: wire.Nack, _: Sequence[Buffer]) -> None:
        if message.outcome in (Outcome.REJECTED, Outcome.DUPLICATE, Outcome.ABANDONED):
            self.ledger.nack(peer.inc, message.tags, Outcome(message.outcome))

    def _learner_ping(self, peer: Peer, message: wire.LearnerPing, _: Sequence[Buffer]) -> None:
        peer.stats = said.numbers(message.stats)
        self.ledger.held(peer.inc, message.held, message.max_tag)
        self.ledger.learner_heard(peer.inc, peer.seen, version=message.version, want=message.want)
        for get in self.newest.again(peer.inc):
            self._send(peer.route, get)
        version = self.ledger.book.credit.version
        self._send(peer.route, wire.LearnerPong(self.inc, version, self.weights.version))

    def _announced(self, peer: Peer, message: wire.Announce, _: Sequence[Buffer]) -> None:
        if not self.ledger.may_publish(peer.inc, message.version):
            self.complaints.about("identity", "%s may not publish so", peer.name)
            return
        for get in self.newest.announced(peer.inc, message):
            self._send(peer.route, get)

    def _chunk(self, peer: Peer, message: wire.Chunk, buffers: Sequence[Buffer]) -> None:
        if not self.newest.came_from(peer.inc):
            self.metrics.errors["identity"] += 1
            return
        blob, more = self.newest.chunk(message, buffers[0] if buffers else b"")
        for get in more:
            self._send(peer.route, get)
        if blob is not None:
            self._xpub.send(wire.encode(blob.announce))

    def _get(self, peer: Peer, message: wire.Get, _: Sequence[Buffer]) -> None:
        for chunk, body in self.newest.wanted(message):
            self.door.charge(peer.budget, nbytes=len(body))
            self._send(peer.route, chunk, body)

    def _watch(self, peer: Peer, _message: wire.Watch, _: Sequence[Buffer]) -> None:
        self._send(peer.route, wire.Status(), self.view.packed(time.monotonic()))

    # ---- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        effects = self.ledger.pump(time.monotonic())
        for entry in effects.deliver:
            unroll = entry.unroll
            self.metrics.lag(self.ledger.book.credit.version - unroll.version_min)
            deliver = entry.deliver(self.ledger.book.actors[unroll.inc].name)
            route = self.roster.route(entry.session)
            if not self._send(route, deliver, *(entry.buffers or ())):
                self.ledger.undelivered(entry)
        for inc, outcome, ranges in effects.acks:
            self._send(self.roster.route(inc), wire.Ack(outcome, ranges))
        for inc, grants in effects.limits:
            self._send(self.roster.route(inc), wire.Limit(grants))

    def _send(self, route: bytes, message: Message, *buffers: Payload) -> bool:
        frames = [route, *wire.encode(message, *buffers)]
        sent = self._router.send(frames)
        if sent:
            self._count("out", message, sum(map(len, frames)))
        else:
            self.metrics.peer_full += 1
        return sent

    def _welcome(self, peer: Peer, version: int) -> None:
        welcome = wire.Welcome(
            self.inc, self.roster.run, self.config.beat_s, self.config.lease_s,
            self.announce, version,
        )  # fmt: skip
        if not self._send(peer.route, welcome, self._shared):
            self.roster.forget(peer.inc)  # else it would never be told: its next beat brings RESYNC

    def _refuse(self, route: bytes, code: Refusal, text: str) -> None:
        self.metrics.refused[code.name.lower()] += 1
        # The words of two environments may be long; what counts stands in front.
        self._send(route, wire.Refuse(code, text[:1000]))

    def _count(self, way: str, message: Message, size: int) -> None:
        self.metrics.messages[way, type(message)] += 1
        self.metrics.bytes[way] += size
