"""The relay's end: one connection for all samplers of a machine. Their messages go through it in
bundles, and each version of the weights, fetched once, onto the shelf, where they take it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import zmq

from headrace.broker.peers.members import Answers, Members
from headrace.broker.protocol import bundles, hello_payload
from headrace.broker.protocol.messages import (
    Announce,
    Buffer,
    Bundle,
    Bye,
    Chunk,
    Hello,
    Malformed,
    Message,
    Payload,
    Ping,
    Resync,
    Welcome,
    encode,
)
from headrace.broker.security import keys
from headrace.broker.transport import endpoints
from headrace.broker.transport.link import Link
from headrace.broker.transport.mailbox import Mailbox
from headrace.broker.weights.subscriber import Subscriber
from headrace.broker.weights.weight_shelf import ShelfError, WeightShelf

log = logging.getLogger(__name__)

# Shared memory that was full is tried again after this time.
_FULL_S: Final = 10.0
# A line that took nothing more is tried again after this time.
_ROOM_S: Final = 0.005


class RelayEnd:
    """Speaks with the broker for the relay."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        inc: int,
        shelf: WeightShelf,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key: keys.Key | None = None,
        port: int = 0,
    ) -> None:
        self.inc = inc
        self.fetches = 0  # versions that came in whole
        self.nbytes = 0  # of them
        self.port = port  # where its node serves metrics; 0 = nowhere
        self.shelf = shelf
        self.link = Link(endpoint, self, context, subscribe=True, key=key)
        self.weights = Subscriber(self.link)
        self.members = Members()
        self._context = context
        self._mail: Mailbox | None = None  # the samplers' socket; None = it is not open
        self._name = name
        self._broker = 0  # incarnation we spoke with last
        self._full_until = 0.0  # shared memory was full; nothing is fetched before
        self._complained = False

    async def serve(self) -> None:
        """Runs the link, and passes on what the samplers of the machine say."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run(), name="link")
            group.create_task(self._pass_on_loop(), name="samplers")

    async def _pass_on_loop(self) -> None:
        """Consumes the samplers' messages, produces bundles. A line that takes no more is waited
        for; what the samplers say meanwhile waits with them."""
        with Mailbox(endpoints.router(self._context)) as mail:
            endpoints.bind(mail.socket, endpoints.relay_address(self.shelf.path))
            self._mail = mail
            while True:
                for frames in await mail.receive(3600.0):
                    connected = self.link.welcome is not None
                    said = self.members.said(frames[0].bytes, frames[1:], connected=connected)
                    self._answer(said)
                for bundle in self.members.take():
                    while not self.link.send(bundle) and self.link.welcome:  # noqa: ASYNC110
                        await asyncio.sleep(_ROOM_S)

    def _answer(self, answers: Answers) -> None:
        """Sends to samplers, as far as they read; the next beat says the rest again."""
        for route, frames in answers:
            if self._mail is not None:
                self._mail.send([route, *frames])

    def serves_somebody(self) -> bool:
        """Tells whether a sampler is there that did not leave, and said something in a lease."""
        return self.members.heard_since(self._a_lease_ago()) > 0

    def _a_lease_ago(self) -> float:
        lease_s = self.link.welcome.lease_s if self.link.welcome is not None else 0.0
        return time.monotonic() - lease_s

    def leave(self, text: str) -> None:
        """Ends cleanly, with the samplers' last figures."""
        for frames in self.beat_frames():
            self.link.send(frames)
        self.link.leave(encode(Bye(self.inc, False, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def hello_frames(self) -> list[Payload]:
        hello = Hello("node", self._name, self.inc, version=self.weights.acting)
        return encode(hello, hello_payload.encode(hello_payload.HelloPayload(port=self.port)))

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        self.weights.on_welcome(welcome, body)
        if self._broker not in (0, welcome.broker_inc):
            self._answer(self.members.resync(encode(Resync(welcome.broker_inc))))
        self._broker = welcome.broker_inc
        self.members.connected()
        for bundle in self.members.take():
            self.link.send(bundle)

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Bundle():
                try:
                    for number, frames in bundles.split(message, buffers):
                        self._answer(self.members.told(number, frames))
                except Malformed as error:
                    log.warning("the broker sent what is no bundle: %s", error)
            case Announce():
                if self._has_room(message.size):
                    self.weights.handle(message, buffers)
                else:
                    self._answer(self.members.announced(message))
            case Chunk():
                self.shelf.show_progress()
                self.weights.handle(message, buffers)
                self._lay_down()

    def beat_frames(self) -> list[list[Payload]]:
        self.weights.beat()
        figures, beats = self.members.beat(self._a_lease_ago())
        own = encode(Ping((), {**figures, "clock": time.time()}))
        return [own, *bundles.pack(beats)]

    def _has_room(self, size: int) -> bool:
        """Reserves room on the shelf: weights that do not fit there are not fetched."""
        if time.monotonic() < self._full_until:
            return False
        try:
            self.shelf.reserve(size)
        except ShelfError as error:
            self.shelf.close()  # so that samplers do not wait for it
            self._full_until = time.monotonic() + _FULL_S
            if not self._complained:
                log.warning("%s; until then each sampler fetches the weights itself", error)
            self._complained = True
            return False
        self._complained = False
        return True

    def _lay_down(self) -> None:
        blob = self.weights.take()
        if blob is None:
            return
        try:
            self.shelf.put(blob)
        except ShelfError:  # reserved for smaller ones; the next announcement reports it
            self.shelf.close()
        self.fetches += 1
        self.nbytes += blob.announce.size
        self._answer(self.members.announced(blob.announce))  # it lies there: nobody has to wait
        self.weights.acts_with(blob.announce.version, blob.announce.digest)
