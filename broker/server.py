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
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from broker import introduction, wire
from broker.blobs import Blob, Fetch
from broker.config import BrokerConfig
from broker.introduction import Introduction
from broker.ledger import BeyondCreditError, Ledger
from broker.mailbox import Mailbox
from broker.metrics import BrokerMetrics
from broker.roster import Peer, Roster
from broker.wire import Buffer, Message, Outcome, Payload, Refusal

log = logging.getLogger(__name__)


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
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.metrics = metrics
        self.inc = inc
        self.shared = shared  # the run, as every peer must see it
        self.roster = roster
        self.announce = announce  # where weight announcements go out
        self.weights = Fetch()
        self.blob: Blob | None = None  # newest whole weights
        self._publisher = 0  # incarnation of the rank that announced weights last
        self._router = Mailbox(router)
        self._xpub = Mailbox(publisher)
        # Who may say it ("" = anyone), and what it does.
        self._handlers: dict[type[Message], tuple[str, Callable[[Peer, Any, Any], None]]] = {
            wire.Unroll: ("actor", self._unroll),
            wire.Ping: ("actor evaluator", self._ping),
            wire.Acting: ("actor evaluator", self._acting),
            wire.Bye: ("", self._bye),
            wire.Done: ("learner", self._done),
            wire.Nack: ("learner", self._nack),
            wire.LearnerPing: ("learner", self._learner_ping),
            wire.Announce: ("learner", self._announced),
            wire.Chunk: ("learner", self._chunk),
            wire.Get: ("", self._get),
            wire.Watch: ("", self._watch),
        }

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._router_loop(), name="router")
                group.create_task(self._xpub_loop(), name="xpub")
                group.create_task(self._tick_loop(), name="tick")
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
            if joined and self.blob is not None:
                self._xpub.send(wire.encode(self.blob.announce))

    async def _tick_loop(self) -> None:
        pause = self.config.beat_s / 4
        while True:
            due = time.monotonic() + pause
            await asyncio.sleep(pause)
            now = time.monotonic()
            self.metrics.loop_lag.observe(max(0.0, now - due))
            for actor in self.ledger.tick(now):
                log.warning("sampler %s fell silent; its credit returns", actor.name)
                self.roster.forget(actor.inc)
            for peer in self.roster.silent(now - 3 * self.config.lease_s):
                self.roster.forget(peer.inc)
            self._pump()

    # ---- receiving ------------------------------------------------------------------------------

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        route = frames[0].bytes
        try:
            message, views = wire.decode([frame.buffer for frame in frames[1:]])
        except wire.OtherProtocol as error:
            self._refuse(route, Refusal.PROTOCOL, str(error))
            return
        except wire.Malformed:
            self.metrics.errors["malformed"] += 1
            return
        self._count("in", message, frames)
        peer = self.roster.get(route)
        if isinstance(message, wire.Hello):
            self._hello(route, message, views)
        elif peer is None or not (isinstance(message, wire.Bye) or self._alive(peer)):
            self.metrics.errors["unknown"] += 1
            self._send(route, wire.Resync(self.inc))
        else:
            roles, handler = self._handlers.get(type(message), ("", None))
            if handler is None or (roles and peer.role not in roles.split()):
                self.metrics.errors["unexpected"] += 1
                return
            # Unrolls stay frames: they go out again as they came, without a copy.
            handler(peer, message, frames[3:] if isinstance(message, wire.Unroll) else views)

    def _alive(self, peer: Peer) -> bool:
        """Heard now; False = the ledger gave it up meanwhile."""
        peer.seen = time.monotonic()
        if peer.role == "actor" and peer.spaces:
            return self.ledger.heard(peer.inc, peer.seen)
        if peer.role == "learner":
            return self.ledger.learner_heard(peer.inc, peer.seen)
        return True

    def _hello(self, route: bytes, hello: wire.Hello, buffers: Sequence[Buffer]) -> None:
        try:
            said = introduction.decode(buffers[0]) if buffers else Introduction()
        except wire.Malformed:
            self.metrics.errors["malformed"] += 1
            return
        objection = self.roster.objection(hello, said)
        if objection is not None:
            log.warning("refused %s %s: %s", hello.role, hello.name, objection[1])
            self._refuse(route, *objection)
            return
        peer = Peer(
            route, hello.role, hello.name, hello.inc, time.monotonic(),
            hello.spaces, said.spaces, hello.version,
        )  # fmt: skip
        if self.roster.join(peer):
            log.info("%s %s joins", hello.role, hello.name)
        self._welcome(peer, self._enter(peer, hello, said))

    def _enter(self, peer: Peer, hello: wire.Hello, said: Introduction) -> int:
        """Tell the ledger who came; returns the version to continue at."""
        book = self.ledger.book
        if peer.role == "learner":
            self.roster.spaces = (hello.spaces, said.spaces)
            book.unroll_bytes = said.unroll_bytes
            for other in self.roster.foreign():
                self._refuse(other.route, Refusal.SPACES, self.roster.space_words(other.said))
                self.ledger.actor_bye(other.inc, ())
                self.roster.forget(other.inc)
            version = self.ledger.learner_hello(
                peer.inc, rank=hello.rank, world=hello.world, version=hello.version,
                want=said.want, trained=said.trained, held=said.held, now=peer.seen,
            )  # fmt: skip
            return max(version, self.weights.version)  # published before it was trained on
        if peer.role == "actor" and said.streams:
            # A sampler may know newer weights than a broker that lost its memory.
            if not book.leases.sessions:
                book.credit.version = max(book.credit.version, hello.version, 0)
            self.ledger.actor_hello(peer.inc, peer.name, said.streams, now=peer.seen)
        return book.credit.version

    # ---- one method a message -------------------------------------------------------------------

    def _unroll(self, peer: Peer, message: wire.Unroll, buffers: Sequence[zmq.Frame]) -> None:
        if message.inc != peer.inc or not peer.spaces:
            self.metrics.errors["credit"] += 1
            return
        size = sum(len(buffer) for buffer in buffers)
        self.metrics.unroll_bytes += size
        try:
            self.ledger.unroll(message, buffers, size)
        except BeyondCreditError as error:
            self.metrics.errors["credit"] += 1
            log.warning("not granted: %s", error)

    def _ping(self, peer: Peer, message: wire.Ping, _buffers: Sequence[Buffer]) -> None:
        if not peer.spaces:
            return
        peer.stats = message.stats
        lost = self.ledger.missing(peer.inc, message.unacked) if peer.role == "actor" else ()
        missing = lost[: wire.MAX_ENTRIES]
        self._send(peer.route, wire.Pong(self.inc, self.ledger.book.credit.version, missing))
        if peer.acting != self.weights.version and self.blob is not None:
            self._send(peer.route, self.blob.announce)  # an announcement got lost
        if self.ledger.over:
            self._send(peer.route, wire.Bye(self.inc, True, "the learner reached its goal"))

    def _acting(self, peer: Peer, message: wire.Acting, _buffers: Sequence[Buffer]) -> None:
        blob = self.blob
        known = blob is not None and message.version == blob.announce.version
        if known and blob is not None and message.digest != blob.announce.digest:
            log.error("%s acts with other weights than version %d", peer.name, message.version)
            return
        peer.acting = message.version

    def _bye(self, peer: Peer, message: wire.Bye, _buffers: Sequence[Buffer]) -> None:
        log.info("%s %s leaves: %s", peer.role, peer.name, message.text)
        if peer.role == "learner":
            self.ledger.learner_bye(peer.inc, final=message.final)
            if message.final:
                farewell = wire.Bye(self.inc, True, message.text)
                for other in self.roster.players():
                    if other.role == "evaluator" and self.blob is not None:
                        self._send(other.route, self.blob.announce)  # they evaluate the last ones
                    self._send(other.route, farewell)
        elif peer.role == "actor":
            self.ledger.actor_bye(peer.inc, message.abandoned)
            if len(message.abandoned) == wire.MAX_ENTRIES:
                return  # the next BYE names the rest
        self.roster.forget(peer.inc)

    def _done(self, peer: Peer, message: wire.Done, _buffers: Sequence[Buffer]) -> None:
        self.ledger.done(peer.inc, message.tags)
        self.ledger.learner_heard(peer.inc, peer.seen, version=message.version, want=message.want)

    def _nack(self, peer: Peer, message: wire.Nack, _buffers: Sequence[Buffer]) -> None:
        if message.outcome in (Outcome.REJECTED, Outcome.DUPLICATE, Outcome.ABANDONED):
            self.ledger.nack(peer.inc, message.tags, Outcome(message.outcome))

    def _learner_ping(
        self, peer: Peer, message: wire.LearnerPing, _buffers: Sequence[Buffer]
    ) -> None:
        peer.stats = message.stats
        self.ledger.held(peer.inc, message.held, message.max_tag)
        self.ledger.learner_heard(peer.inc, peer.seen, version=message.version, want=message.want)
        if peer.inc == self._publisher:
            for get in self.weights.again():
                self._send(peer.route, get)
        version = self.ledger.book.credit.version
        self._send(peer.route, wire.LearnerPong(self.inc, version, self.weights.version))

    def _announced(self, peer: Peer, message: wire.Announce, _buffers: Sequence[Buffer]) -> None:
        self._publisher = peer.inc
        for get in self.weights.on_announce(message):
            # The first chunk is on its way unasked.
            if get.hi > 1:
                self._send(peer.route, wire.Get(get.version, max(1, get.lo), get.hi))

    def _chunk(self, peer: Peer, message: wire.Chunk, buffers: Sequence[Buffer]) -> None:
        blob, more = self.weights.on_chunk(message, buffers[0] if buffers else b"")
        for get in more:
            self._send(peer.route, get)
        if blob is not None:
            self.blob = blob
            self._xpub.send(wire.encode(blob.announce))

    def _get(self, peer: Peer, message: wire.Get, _buffers: Sequence[Buffer]) -> None:
        if self.blob is not None and message.version == self.blob.announce.version:
            for chunk, body in self.blob.chunks(message):
                self._send(peer.route, chunk, body)

    def _watch(self, peer: Peer, _message: wire.Watch, _buffers: Sequence[Buffer]) -> None:
        self._send(peer.route, wire.Status(), introduction.pack(self.status()))

    def status(self) -> dict[str, Any]:
        """Numbers for whoever looks."""
        book = self.ledger.book
        return {
            "run": self.roster.run,
            "version": book.credit.version,
            "weights": self.weights.version,
            "queued": book.entries - len(book.leases),
            "leased": len(book.leases),
            "running": book.credit.running,
            "received": book.received,
            "outcomes": {o.name.lower(): n for o, n in book.outcomes.items()},
            "duplicates": book.copies,
            "actors": {"behind": self.roster.behind(self.weights.version), **self.roster.sums()},
            "learners": [peer.stats for peer in self.roster.of("learner")],
            "evaluators": [peer.stats for peer in self.roster.of("evaluator")],
            "over": self.ledger.over,
        }

    # ---- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        effects = self.ledger.pump(time.monotonic())
        for entry in effects.deliver:
            unroll = entry.unroll
            self.metrics.lags[self.ledger.book.credit.version - unroll.version_min] += 1
            deliver = wire.Deliver(
                entry.tag, entry.attempt, self.ledger.book.actors[unroll.inc].name, unroll.inc,
                unroll.stream, unroll.seq, unroll.floor, unroll.version_min, unroll.version_max,
                unroll.steps, unroll.digest, unroll.ended, unroll.episodes,
            )  # fmt: skip
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
            self._count("out", message, frames)
        else:
            self.metrics.peer_full += 1
        return sent

    def _welcome(self, peer: Peer, version: int) -> None:
        welcome = wire.Welcome(
            self.inc, self.roster.run, self.config.beat_s, self.config.lease_s,
            self.announce, version,
        )  # fmt: skip
        if not self._send(peer.route, welcome, introduction.pack(self.shared)):
            self.roster.forget(peer.inc)  # else it would never be told: its next beat brings RESYNC

    def _refuse(self, route: bytes, code: Refusal, text: str) -> None:
        self.metrics.refused[code.name.lower()] += 1
        # The words of two environments may be long; what counts stands in front.
        self._send(route, wire.Refuse(code, text[:1000]))

    def _count(self, way: str, message: Message, frames: Sequence[Any]) -> None:
        self.metrics.messages[way, type(message)] += 1
        self.metrics.bytes[way] += sum(map(len, frames))
