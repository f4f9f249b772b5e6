"""What the broker sends, counted. What a socket does not take is dropped; bulk waits for room."""

import time
from collections.abc import Hashable, Sequence

from broker import wire
from broker.bulk import Bulk
from broker.mailbox import Mailbox
from broker.metrics import BrokerMetrics
from broker.roster import Peer
from broker.wire import Message, Payload, Reached, Refusal

_MOST_WORDS = 1000


class Post:
    """The ROUTER's way out."""

    def __init__(self, router: Mailbox, metrics: BrokerMetrics, *, lease_s: float) -> None:
        self._router = router
        self._metrics = metrics
        self._lease_s = lease_s

    def send(self, route: bytes, message: Message, *buffers: Payload) -> bool:
        """False = there was no room for it, or nobody there."""
        return self._send(route, wire.encode(message, *buffers))

    def bulk(self, peer: Peer | None, key: Hashable, message: Message, *buffers: Payload) -> bool:
        """In its turn, and in pieces where the peer's line is slow. False = nobody is there."""
        if peer is None:
            return False
        if peer.bulk is None:
            peer.bulk = Bulk(self._lease_s)
        peer.bulk.put(key, wire.encode(message, *buffers))
        self._flush(peer, peer.bulk)
        return True

    def reached(self, peer: Peer, message: Reached) -> None:
        """The peer has read so far: there is room for more."""
        if peer.bulk is not None:
            peer.bulk.reached(message, time.monotonic())
            self._flush(peer, peer.bulk)

    def beat(self, peer: Peer) -> None:
        """Every beat of the peer: what found no room may find some now."""
        if peer.bulk is not None:
            peer.bulk.beat(lambda frames: self._send(peer.route, frames), time.monotonic())

    def send_all(self, route: bytes, messages: Sequence[Message]) -> None:
        for message in messages:
            self.send(route, message)

    def refuse(self, route: bytes, code: Refusal, text: str) -> None:
        self._metrics.refused[code.name.lower()] += 1
        # The words of two environments may be long; what counts stands in front.
        self.send(route, wire.Refuse(code, text[:_MOST_WORDS]))

    def _flush(self, peer: Peer, bulk: Bulk) -> None:
        bulk.flush(lambda frames: self._send(peer.route, frames), time.monotonic())

    def _send(self, route: bytes, frames: Sequence[Payload]) -> bool:
        sent = self._router.send([route, *frames])
        if sent:
            self._metrics.count("out", wire.kind(frames), len(route) + sum(map(len, frames)))
        else:
            self._metrics.peer_full += 1
        return sent
