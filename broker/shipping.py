"""The messages about weights: rank 0 brings them, whoever acts fetches them and proves it."""

import time
from collections.abc import Callable, Sequence

from broker import wire
from broker.complaints import Complaints
from broker.door import Door
from broker.ledger import Ledger
from broker.newest import Newest
from broker.post import Post
from broker.roster import Peer
from broker.spread import Spread
from broker.wire import Buffer


class Shipping:
    """One broker's. One method a message, as in the server."""

    def __init__(
        self,
        ledger: Ledger,
        door: Door,
        complaints: Complaints,
        post: Post,
        *,
        announce: Callable[[wire.Announce], None],
        inc: int,
    ) -> None:
        self.newest = Newest()
        self.spread = Spread()
        self._ledger = ledger
        self._door = door
        self._complaints = complaints
        self._post = post
        self._announce = announce  # tells all who subscribed
        self._inc = inc  # of the broker

    def announced(self, peer: Peer, message: wire.Announce, _: Sequence[Buffer]) -> None:
        if not self._ledger.may_publish(peer.inc, message.version):
            self._complaints.about("identity", "%s may not publish so", peer.name)
            return
        self._post.send_all(peer.route, self.newest.announced(peer.inc, message))

    def pong(self) -> wire.LearnerPong:
        """What a learner hears at every beat."""
        version = self._ledger.book.credit.version
        return wire.LearnerPong(self._inc, version, self.newest.fetch.version)

    def chunk(self, peer: Peer, message: wire.Chunk, buffers: Sequence[Buffer]) -> None:
        if not self.newest.came_from(peer.inc):
            self._complaints.count("identity")
            return
        blob, more = self.newest.chunk(message, buffers[0] if buffers else b"")
        self._post.send_all(peer.route, more)
        if blob is not None:
            said = blob.announce
            self.spread.whole(said.version, said.size, now=time.monotonic(), wall=time.time())
            self._announce(said)

    def get(self, peer: Peer, message: wire.Get, _: Sequence[Buffer]) -> None:
        for chunk, body in self.newest.wanted(message):
            self._door.charge(peer.budget, nbytes=len(body))
            self._post.send(peer.route, chunk, body)

    def acting(self, peer: Peer, message: wire.Acting, _: Sequence[Buffer]) -> None:
        blob = self.newest.blob
        known = blob is not None and message.version == blob.announce.version
        if known and blob is not None and message.digest != blob.announce.digest:
            self._complaints.say("%s: other weights than version %d", peer.name, message.version)
            return
        peer.acting = message.version
        if peer.role == "actor":
            self._ledger.acts(peer.inc, message.version)
            self.spread.acts(message.version, now=peer.seen)
