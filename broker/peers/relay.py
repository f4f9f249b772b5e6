"""The relay's end: puts each version of the weights, fetched once, on the shelf, where the samplers
of the machine take it. It has no streams and no environment."""

import logging
import time
from collections.abc import Sequence
from typing import Final

import zmq

from headrace.broker.protocol import hello_payload
from headrace.broker.protocol.messages import (
    Announce,
    Buffer,
    Bye,
    Chunk,
    Hello,
    Message,
    Payload,
    Ping,
    Welcome,
    encode,
)
from headrace.broker.security import keys
from headrace.broker.transport.link import Link
from headrace.broker.weights.subscriber import Subscriber
from headrace.broker.weights.weight_shelf import ShelfError, WeightShelf

log = logging.getLogger(__name__)

# Shared memory that was full is tried again after this time.
_FULL_S: Final = 10.0


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
        self._name = name
        self._full_until = 0.0  # shared memory was full; nothing is fetched before
        self._complained = False

    def leave(self, text: str) -> None:
        self.link.send(encode(Bye(self.inc, False, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def hello_frames(self) -> list[Payload]:
        hello = Hello("node", self._name, self.inc, version=self.weights.acting)
        return encode(hello, hello_payload.encode(hello_payload.HelloPayload(port=self.port)))

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        self.weights.on_welcome(welcome, body)

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Announce():
                if self._has_room(message.size):
                    self.weights.handle(message, buffers)
            case Chunk():
                self.shelf.show_progress()
                self.weights.handle(message, buffers)
                self._lay_down()

    def beat_frames(self) -> list[list[Payload]]:
        self.weights.beat()
        return [encode(Ping((), {"clock": time.time()}))]

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
        self.nbytes += len(blob.body)
        self.weights.acts_with(blob.announce.version, blob.announce.digest)
