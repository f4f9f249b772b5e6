"""Sends the broker's messages, to each peer in its own protocol. What a socket does not take is
dropped; bulk waits for room. What goes to samplers behind a node, and small unrolls for a learner,
wait for `flush`, in bundles."""

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from headrace.broker.protocol import bundles, releases
from headrace.broker.protocol import messages as wire
from headrace.broker.protocol.messages import (
    Bundle,
    Chunk,
    Deliver,
    Delta,
    Message,
    Open,
    Payload,
    Piece,
    Reached,
    Refusal,
)
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.connections.route import MemberRoute, Route
from headrace.broker.transport.bulk.sender import BulkSender, Send
from headrace.broker.transport.bulk.unsent_bytes import MOST_BULK, UnsentBytes
from headrace.broker.transport.mailbox import Mailbox

_MOST_WORDS = 1000
_BULK = (Chunk, Delta, Deliver, Open, Piece)
# Unrolls below it cost less in a bundle, although they are copied into it.
_SMALL_UNROLL = 16384
_UNROLLS_JOINED_SINCE = 3  # protocol


class Replies:
    """Sends through the ROUTER, with flow control for each peer."""

    def __init__(
        self, router: Mailbox, roster: Roster, metrics: Counters, lease_s: float, queue_bytes: int
    ) -> None:
        self.pipes = UnsentBytes()
        # Called when nothing waits for a peer any more, after something did.
        self.emptied: Callable[[Peer], object] = bool
        self._router = router
        self._roster = roster
        self._metrics = metrics
        self._lease_s = lease_s
        self._queue_bytes = queue_bytes  # what learners do not read may be as much as the queue
        # By a node's route: messages for its samplers, until they are flushed.
        self._bundled: dict[bytes, list[bundles.Member]] = {}
        # By a learner's route: small unrolls, until they are flushed.
        self._delivered: dict[Route, tuple[Peer, list[tuple[Hashable, Sequence[Payload]]]]] = {}

    def send(self, route: Route, message: Message, *buffers: Payload, protocol: int = 0) -> bool:
        """Sends a message; False = there was no room for it, or no peer there. `protocol`: for a
        route where no peer is."""
        return self._send(route, wire.encode(message, *buffers), protocol=protocol)

    def bulk(self, peer: Peer, key: Hashable, message: Message, *buffers: Payload) -> None:
        """Sends bulk in its turn, in pieces where the line is slow; without room it waits."""
        if peer.bulk is None:
            peer.bulk = BulkSender(self._lease_s)
        # Before it waits: if it goes in pieces, these frames travel inside its Open.
        frames = releases.spoken(wire.encode(message, *buffers), peer.protocol)
        if (
            isinstance(message, Deliver)
            and peer.protocol >= _UNROLLS_JOINED_SINCE
            and sum(map(len, frames)) < _SMALL_UNROLL
        ):
            self._delivered.setdefault(peer.route, (peer, []))[1].append((key, frames))
            return
        self._deliver()  # what was said before comes before
        peer.bulk.submit(key, frames, self._to(peer), time.monotonic())

    def reached(self, peer: Peer, message: Reached) -> None:
        """Notes how far the peer has read: there is room for more."""
        if peer.bulk is not None:
            peer.bulk.reached(message, time.monotonic())
            self.send_waiting(peer)

    def beat(self, peer: Peer) -> None:
        """Tries again at every beat of the peer: what found no room may find some now."""
        if peer.bulk is not None:
            peer.bulk.beat(self._to(peer), time.monotonic())
            self.send_waiting(peer)

    def send_waiting(self, peer: Peer) -> None:
        """Sends what waits for a peer, as far as there is room now."""
        if peer.bulk is not None:
            peer.bulk.flush(self._to(peer), time.monotonic())
            if not peer.bulk:
                self.emptied(peer)

    def is_reachable(self, route: Route, message: Message) -> bool:
        """Sends a harmless message; False = the connection is closed."""
        assert isinstance(route, bytes), "only samplers are behind nodes"
        return self._router.reaches([route, *self._spoken(route, wire.encode(message), 0)])

    def send_all(self, route: Route, messages: Sequence[Message]) -> None:
        for message in messages:
            self.send(route, message)

    def refuse(self, route: Route, code: Refusal, text: str, protocol: int = 0) -> None:
        self._metrics.refused[code.name.lower()] += 1
        # The description of two environments may be long; what matters stands first.
        self.send(route, wire.Refuse(code, text[:_MOST_WORDS]), protocol=protocol)

    def _to(self, peer: Peer) -> Send:
        queue = self._queue_bytes if peer.role == "learner" else 0
        return partial(self._send, peer.route, queue=queue)

    def _spoken(self, route: bytes, frames: Sequence[Payload], protocol: int) -> Sequence[Payload]:
        peer = self._roster.get(route)
        return releases.spoken(frames, protocol or (peer.protocol if peer else releases.PROTOCOL))

    def _deliver(self) -> None:
        """Sends the small unrolls that wait for a turn's end."""
        waiting, self._delivered = self._delivered, {}
        for peer, unrolls in waiting.values():
            assert peer.bulk is not None
            send, now = self._to(peer), time.monotonic()
            for these in bundles.groups(unrolls):
                if len(these) == 1:
                    peer.bulk.submit(*these[0], send, now)
                    continue
                joined = bundles.join([(bundles.OWN, frames) for _, frames in these])
                if peer.bulk.submit_joined(joined, these, send, now):
                    for _, frames in these:  # the bundle itself is counted where it is sent
                        self._metrics.count("out", Deliver, sum(map(len, frames)))

    def flush(self) -> None:
        """Sends the bundles that wait."""
        self._deliver()
        waiting, self._bundled = self._bundled, {}
        for node, inner in waiting.items():
            for frames in bundles.pack(inner):
                self._send(node, frames)

    def _send_to_member(self, route: MemberRoute, frames: Sequence[Payload]) -> bool:
        kind = wire.kind(frames)
        if self._roster.get(route.node) is None:
            return False
        if kind in _BULK:
            self.flush()  # what was said before comes before
            (alone,) = bundles.pack([(route.member, frames)])
            sent = self._send(route.node, alone, bulk=True)
        else:
            self._bundled.setdefault(route.node, []).append((route.member, frames))
            sent = True
        if sent:
            self._metrics.count("out", kind, sum(map(len, frames)))
        return sent

    def _send(
        self,
        route: Route,
        frames: Sequence[Payload],
        *,
        queue: int = 0,
        protocol: int = 0,
        bulk: bool = False,
    ) -> bool:
        if isinstance(route, MemberRoute):
            return self._send_to_member(route, frames)
        kind = wire.kind(frames)
        size, bulk, most = (
            len(route) + sum(map(len, frames)),
            bulk or kind in _BULK or (kind is Bundle and queue > 0),  # a learner's
            MOST_BULK + queue,
        )
        if not self.pipes.has_room(route, size, bulk=bulk, most=most, in_all=queue):
            self._metrics.peer_full += not bulk  # bulk waits for room
            return False
        left = self.pipes.count(route, size, bulk=bulk, most=most)
        sent = self._router.send([route, *self._spoken(route, frames, protocol)], left)
        if sent:
            own = size if kind is not Bundle else size - sum(map(len, frames[2:]))
            self._metrics.count("out", kind, own)
        else:
            self._metrics.peer_full += 1
        return sent
