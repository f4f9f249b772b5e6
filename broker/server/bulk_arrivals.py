"""Takes what comes to the broker in pieces, if its peer may bring it and there is memory for it.

Only what would be taken whole is taken in pieces: an unroll that was granted and is not here, a
chunk from the publisher. Memory for it is part of `queue_mb`: a grant keeps room for its unroll.
An incomplete one is dropped with its peer's session.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol.messages import (
    Buffer,
    Chunk,
    Malformed,
    Mark,
    Message,
    Open,
    Piece,
    Reached,
    Unroll,
)
from headrace.broker.server.connections.rate_limits import RateLimits
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.weight_messages import WeightMessages
from headrace.broker.transport.bulk import reassembly
from headrace.broker.transport.bulk.reassembly import Reassembly
from headrace.broker.weights.blobs import MOST_CHUNK_BYTES

# The messages handled here; and the roles that bring bulk.
CARRIAGE: Final = (Open, Piece, Mark, Reached)
_BRING: Final = ("actor", "learner")


class BulkArrivals:
    """Puts together the messages that peers send in pieces, within the memory there is for them."""

    def __init__(
        self,
        ledger: Ledger,
        limits: RateLimits,
        weight_messages: WeightMessages,
        take: Callable[[Peer, Message, Sequence[Buffer]], None],
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._peer_log = weight_messages.peer_log
        self._replies = weight_messages.replies
        self._weight_messages = weight_messages
        self._take = take  # a message that is whole now
        self._of: dict[int, Reassembly] = {}  # by incarnation: they outlive a connection

    @property
    def nbytes(self) -> int:
        """Returns the bytes of all that is not whole. The thread that serves metrics asks too."""
        return sum(own.size for own in list(self._of.values()))

    def carry(self, peer: Peer, message: Message, buffers: Sequence[Buffer]) -> None:
        """Handles one of CARRIAGE. A peer with nothing to bring may still be sent bulk."""
        match message:
            case Open():
                self._opened(peer, message, buffers)
            case Piece():
                self._piece(peer, message, buffers)
            case Mark():
                own = self._of.get(peer.inc) or Reassembly()
                self._replies.send(peer.route, own.answer(message, time.monotonic()))
            case Reached():
                self._replies.reached(peer, message)

    def _opened(self, peer: Peer, message: Open, head: Sequence[Buffer]) -> None:
        if peer.role not in _BRING:
            self._peer_log.count("unexpected")
            return
        own = self._of.setdefault(peer.inc, Reassembly())
        try:
            inner = reassembly.opened(message, head)
        except Malformed:
            self._peer_log.count("malformed")
            own.refuse(message)
            return
        reason = self._objection(peer, inner, message.sizes, self.nbytes - own.size)
        if reason:
            self._peer_log.count(reason)
        if reason or not self._wanted(peer.inc, inner):
            own.refuse(message)
        else:
            own.begin(message, inner)

    def _piece(self, peer: Peer, message: Piece, parts: Sequence[Buffer]) -> None:
        own = self._of.get(peer.inc)
        whole = own.add(message, parts) if own is not None else None
        if whole is not None:
            self._take(peer, *whole)

    def sweep(self, roster: Roster) -> None:
        """Drops, at every tick, what its peer cannot finish or what is no longer needed."""
        for inc, own in list(self._of.items()):
            if not roster.route_of(inc):
                del self._of[inc]
            elif own.message is not None and not self._wanted(inc, own.message):
                own.forget()

    def _objection(self, peer: Peer, inner: Message, sizes: Sequence[int], others: int) -> str:
        """Returns why this peer may not bring it, one of rate_limits.REASONS; "" = it may."""
        size, state = sum(sizes), self._ledger.state
        match inner:
            case Unroll() if peer.role == "actor":
                if inner.inc != peer.inc:
                    return "identity"
                if not self._limits.has_honest_size(inner, sizes, size):
                    return "size"
                if not self._granted(inner):
                    return "credit"
                # A grant keeps room, so only a revived sampler finds none. Its next PING names this
                # one and it comes again, when others have ended.
                return "room" if state.nbytes + others + size > state.queue_bytes else ""
            case Chunk() if peer.role == "learner":
                fits = self._limits.has_honest_size(inner, sizes, size) and size <= MOST_CHUNK_BYTES
                return "" if fits else "size"
        return "unexpected"

    def _granted(self, unroll: Unroll) -> bool:
        actor = self._ledger.state.actors.get(unroll.inc)
        stream = actor.streams.get(unroll.stream) if actor is not None else None
        return stream is not None and unroll.seq < stream.limit

    def _wanted(self, inc: int, inner: Message) -> bool:
        """Tells whether it is not here yet and that incarnation may still bring it."""
        if not isinstance(inner, Unroll):
            return self._weight_messages.is_publisher(inc)
        if not self._granted(inner):
            return False
        stream = self._ledger.state.actors[inner.inc].streams[inner.stream]
        entry = stream.present.get(inner.seq)
        if entry is not None:
            return entry.buffers is None  # a learner has it; a copy is good to have
        return not stream.known(inner.seq)
