"""A peer's connection to the broker: greet, listen, beat, and connect again when it falls silent.

    CONNECT -> greet every beat -> WELCOME -> LIVE --silent for a lease--> close, back off
                                               |
                                               +-- RESYNC (the broker restarted) --> greet

The Peer object decides what a peer sends and does; the link only carries. Failed handshakes (wrong
keys) are reported by a monitor of the socket, which is read at every beat.
"""

import asyncio
import logging
import random
import time
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

import zmq

from headrace.broker.errors import UserError
from headrace.broker.peer_errors import UnreportedErrors
from headrace.broker.protocol import bundles
from headrace.broker.protocol.fields import MOST_TEXT_BYTES, Refusal
from headrace.broker.protocol.messages import (
    Announce,
    Buffer,
    Bundle,
    Chunk,
    Deliver,
    Mark,
    Message,
    Open,
    OtherProtocol,
    Payload,
    Piece,
    Reached,
    Refuse,
    Resync,
    Trouble,
    Welcome,
    WireError,
    decode,
    encode,
)
from headrace.broker.protocol.releases import PROTOCOL
from headrace.broker.security import curve
from headrace.broker.security.handshake import Handshakes, failure
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.broker.transport.announcements import AnnouncementListener
from headrace.broker.transport.bulk import reassembly
from headrace.broker.transport.bulk.reassembly import Reassembly
from headrace.broker.transport.bulk.sender import BulkSender
from headrace.broker.transport.mailbox import Mailbox

log = logging.getLogger(__name__)

# Without an answer for this long a warning is logged; attempts go on.
_PATIENCE_S: Final = 5.0
# Each unanswered HELLO doubles it: back-off, no load on a broker that is already slow to answer.
_GREET_EVERY_S: Final = 0.2
_GREET_MOST_S: Final = 2.0
_BACKOFF_S: Final = (0.05, 5.0)


class RefusedError(UserError):
    """Says, for the user, why the broker refused us."""


class Peer(Protocol):
    """Decides what is sent over a link, and handles what comes in."""

    inc: int

    def hello_frames(self) -> list[Payload]:
        """Returns the HELLO, as things stand now."""

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None: ...

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None: ...

    def beat_frames(self) -> list[list[Payload]]:
        """Returns the messages of one beat."""


class Link:
    """Owns one DEALER at a time, and the subscription beside it; both belong to the loop that runs
    `run`."""

    def __init__(
        self,
        endpoint: str,
        peer: Peer,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        subscribe: bool = False,
        key: Key | None = None,
        relay: str = "",
    ) -> None:
        self.endpoint = endpoints.check(endpoint)
        self._relay = relay  # where a relay of this machine passes on to the broker; "" = directly
        self.peer = peer
        self.welcome: Welcome | None = None  # of the broker we speak with; None = not yet
        self.reconnects = 0
        self.reports: UnreportedErrors | None = None  # that the broker hears of at the next beat
        # What waits to be sent; another one at every WELCOME.
        self.bulk = BulkSender(2 * _PATIENCE_S)
        self.loop_turns = 0  # of its loop: at every beat, and whenever something came in
        self._key = key if not relay else None  # None = the other end is one without keys
        self._handshakes = Handshakes(self.endpoint, self._key)
        self._context = context
        self._mail: Mailbox | None = None
        self._heard = 0.0  # when the broker last said anything
        self._greeted = 0.0  # when we last said HELLO
        self._unanswered = 0  # HELLOs that went out on this socket since the last WELCOME
        self._complained = False  # the user was told that the broker does not answer
        self._left = False  # we have said goodbye
        self._pieces = Reassembly()  # what comes in pieces, also over several connections
        # Hears of weights; None = this peer needs none.
        self._announcements = (
            AnnouncementListener(context, key, self._announced) if subscribe else None
        )

    def send(self, frames: Sequence[Payload]) -> bool:
        """Sends now; False = there was no room. A message that must not be lost is sent again at a
        beat."""
        return self._mail is not None and self._mail.send(frames)

    def send_bulk(self, key: Hashable, frames: Sequence[Payload]) -> None:
        """Sends a large message in its turn, in pieces where the line is slow. It is dropped while
        there is no broker, and when the connection breaks: the next beats tell what is missing
        there."""
        if self.welcome is not None:
            self.bulk.submit(key, frames, self.send, time.monotonic())

    def leave(self, frames: Sequence[Payload]) -> None:
        """Says goodbye, and from now on nothing else: what crosses with it makes the broker ask who
        we are, and an answer would join anew."""
        self.send(frames)
        self._left = True

    def greet(self) -> None:
        """Sends HELLO again, because its content has changed."""
        self._greeted = time.monotonic()
        if not self._left:
            self.send(self.peer.hello_frames())

    async def run(self) -> None:
        """Ends only by cancellation, or by RefusedError."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._connect_loop(), name="link-connect")
            if self._announcements is not None:
                group.create_task(self._announcements.run(), name="link-announce")

    async def _connect_loop(self) -> None:
        """Opens one socket after another; each lives until the broker is silent for a lease."""
        pause, longest = _BACKOFF_S
        started = time.monotonic()
        while True:
            with Mailbox(endpoints.dealer(self._context, self._key)) as mail:
                monitor = curve.monitor_handshakes(mail.socket)
                mail.socket.connect(self._relay or self.endpoint)
                self._mail = mail
                try:
                    if await self._talk(mail, monitor, started):
                        pause = _BACKOFF_S[0]
                finally:
                    self._mail = None
                    curve.stop_monitor(mail.socket, monitor)
            self.reconnects += 1
            away = max(pause, self._handshakes.pause_s())
            await asyncio.sleep(away * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)
            started = time.monotonic()

    async def _talk(self, mail: Mailbox, monitor: "zmq.Socket[bytes]", started: float) -> bool:
        """Runs one socket until the broker is silent or handshakes fail; True = the broker answered
        once.

        Consumes the broker's messages, produces beats, waits for either a message or the next beat.
        """
        self._heard = started
        self._unanswered = 0
        answered = False
        beat_at = 0.0
        while True:
            self.loop_turns += 1
            now = time.monotonic()
            if now >= beat_at:
                if self._locked_out(monitor):
                    self.welcome = None
                    return answered
                beat_at = now + self._beat(mail, now - started if not answered else 0.0)
            for frames in await mail.receive(max(0.0, beat_at - time.monotonic())):
                self._heard = time.monotonic()
                answered = True
                self._handshakes.succeeded()
                self._dispatch([frame.buffer for frame in frames])
            lease_s = self.welcome.lease_s if self.welcome is not None else 2 * _PATIENCE_S
            if time.monotonic() - self._heard > lease_s:
                if answered:
                    log.warning("the broker at %s fell silent; connecting again", self.endpoint)
                self.welcome = None
                return answered

    def _locked_out(self, monitor: "zmq.Socket[bytes]") -> bool:
        """Tells whether failed handshakes end this socket; raises RefusedError if no other would
        do."""
        out = False
        for event in curve.failures(monitor):
            out |= self._handshakes.failed(failure(*event))
        if out:
            if fatal := self._handshakes.fatal():
                raise RefusedError(fatal)
            if line := self._handshakes.line(time.monotonic()):
                self._complained = True
                log.warning("%s", line)
        return out

    def _beat(self, mail: Mailbox, waited_s: float) -> float:
        """Sends HELLO or a beat; returns the seconds to the next."""
        if self._left:
            return _GREET_MOST_S
        if self.welcome is None:
            self._unanswered += mail.send(self.peer.hello_frames())
            if waited_s > _PATIENCE_S and not self._complained:
                self._complained = True
                log.warning(
                    "no broker answers at %s after %.0f s; still trying"
                    " (start one with: headrace broker --run RUN)",
                    self.endpoint,
                    waited_s,
                )
            return min(_GREET_EVERY_S * (1 << self._unanswered), _GREET_MOST_S)
        for frames in self.peer.beat_frames():
            mail.send(frames)
        self.bulk.beat(mail.send, time.monotonic())
        self._report(mail)
        return self.welcome.beat_s

    def _report(self, mail: Mailbox) -> None:
        """Reports our errors; those that cannot be sent now wait for the next beat."""
        if self.reports is None:
            return
        for text, count in self.reports.take():
            short = text.encode(errors="replace")[:MOST_TEXT_BYTES].decode(errors="ignore")
            if not mail.send(encode(Trouble(self.peer.inc, short, count))):
                self.reports.add(text, count)

    def _dispatch(self, frames: Sequence[Buffer]) -> None:
        try:
            message, buffers = decode(frames)
            if isinstance(message, Open | Piece | Mark | Reached) and self.welcome is not None:
                self._carry(message, buffers)
                return
            if isinstance(message, Bundle) and bundles.is_own(message):
                for _, inner in bundles.split(message, buffers):
                    if bundles.kind_of(inner) is Deliver:
                        self._dispatch(inner)
                return
        except OtherProtocol as error:
            raise RefusedError(
                f"the broker at {self.endpoint} is of another release: {error}"
            ) from error
        except WireError as error:
            log.warning("the broker at %s sent what is no message: %s", self.endpoint, error)
            return
        match message:
            case Welcome():
                self._complained = False
                self._unanswered = 0
                self.welcome = message
                self.bulk = BulkSender(message.lease_s)
                if self._announcements is not None:
                    address = endpoints.seen_from(self.endpoint, message.announce)
                    self._announcements.listen_to(address, self.reconnects)
                self.peer.on_welcome(message, buffers)
            case Refuse() if message.code == Refusal.WAIT:
                if not self._complained:
                    self._complained = True
                    log.info("the broker at %s lets us wait: %s", self.endpoint, message.text)
            case Refuse():
                told = f"the broker at {self.endpoint} refused: {message.text}"
                if frames[0][2] < PROTOCOL:  # a broker of this release answers in ours
                    told += "; upgrade the broker first"
                raise RefusedError(told + (f" (our key: {self._key.path})" if self._key else ""))
            case Resync():
                # Each message that the new broker does not know brings one; one answer will do.
                if time.monotonic() - self._greeted > _GREET_EVERY_S:
                    self.greet()
            case _ if self.welcome is not None:
                self.peer.handle(message, buffers)
            case _:
                pass  # an answer to somebody we were before

    def _carry(self, message: Open | Piece | Mark | Reached, buffers: Sequence[Buffer]) -> None:
        """Handles the messages of bulk: pieces that come in, marks, and the answers to our own."""
        now = time.monotonic()
        match message:
            case Open():
                if isinstance(inner := reassembly.opened(message, buffers), Deliver | Chunk):
                    self._pieces.begin(message, inner)
                else:
                    self._pieces.refuse(message)
            case Piece():
                whole = self._pieces.add(message, buffers)
                if whole is not None:
                    self.peer.handle(*whole)
            case Mark():
                self.send(encode(self._pieces.answer(message, now)))
            case Reached():
                self.bulk.reached(message, now)
                self.bulk.flush(self.send, now)

    def _announced(self, announce: Announce) -> None:
        if self.welcome is not None:
            self.peer.handle(announce, ())
