"""The messages about weights: rank 0 brings them, peers that act fetch them and prove it."""

import time
from collections.abc import Callable, Collection, Sequence

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Get
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.rate_limits import RateLimits
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.propagation_times import PropagationTimes
from headrace.broker.weights.blobs import Blob, KeptVersions
from headrace.broker.weights.fetch import WeightFetch


class NewestWeights:
    """Keeps the newest weights: who may bring them and what is asked for; the fetch verifies what
    arrives. Its methods return the messages to send."""

    def __init__(self) -> None:
        self.fetch = WeightFetch()
        self.blob: Blob | None = None  # newest whole weights, its chunks apart
        self._kept = KeptVersions()
        self._publisher = 0  # incarnation of the rank that announced last

    @property
    def nbytes(self) -> int:
        """Returns the bytes of weights in memory: what comes in, and all versions that are kept."""
        return self.fetch.nbytes + self._kept.nbytes

    def announced(self, inc: int, announce: Announce) -> list[Get]:
        """Notes an announcement; returns what to ask for. The first chunk comes unasked."""
        self._publisher = inc
        gets = self.fetch.on_announce(announce)
        return [Get(get.version, max(1, get.lo), get.hi) for get in gets if get.hi > 1]

    def came_from(self, inc: int) -> bool:
        """Tells whether that incarnation announced the newest weights."""
        return inc == self._publisher

    def chunk(
        self, chunk: Chunk, body: Buffer, fetched: Callable[[], Collection[int]]
    ) -> tuple[Blob | None, list[Get]]:
        """Takes in a chunk; returns the blob if it is whole now, to be announced to all, and what
        to ask for. `fetched`: versions that peers are in the middle of."""
        blob, more = self.fetch.on_chunk(chunk, body)
        if blob is not None:
            self.blob = blob.with_own_chunks()
            self._kept.add(self.blob, fetched())
        return self.blob if blob is not None else None, more

    def again(self, inc: int) -> list[Get]:
        """Returns what to ask for again, at every beat of the publisher."""
        return self.fetch.ask_missing() if self.came_from(inc) else []

    def instead(self, get: Get) -> Announce | None:
        """Returns the announcement of newer weights for a Get whose version is no longer here."""
        return self._kept.newer_instead(get)

    def indexes(self, get: Get) -> range:
        """Returns the indexes of the chunks that a Get asks for, as far as they exist."""
        return self._kept.indexes(get)

    def piece(self, version: int, index: int) -> tuple[Chunk, memoryview] | None:
        """Returns one chunk of a version; None = it is not here, or no longer."""
        found = self._kept.chunks(Get(version, index, index + 1))
        return found[0] if found else None


class WeightMessages:
    """Handles the messages about weights. One method for each message, as in the server."""

    def __init__(
        self,
        ledger: Ledger,
        limits: RateLimits,
        peer_log: PeerLog,
        replies: Replies,
        roster: Roster,
        *,
        announce: Callable[[messages.Announce], None],
        inc: int,
    ) -> None:
        self.newest = NewestWeights()
        self.propagation = PropagationTimes()
        self._ledger = ledger
        self._limits = limits
        self.peer_log = peer_log
        self.replies = replies
        self._roster = roster
        self._announce = announce  # tells all subscribers
        replies.pipes.drained = self._drained
        replies.emptied = self._serve
        self._inc = inc  # of the broker

    @property
    def unread(self) -> int:
        """Returns the bytes sent, of any kind, that peers have not taken yet."""
        return self.replies.pipes.nbytes

    @property
    def nbytes(self) -> int:
        """Returns the bytes of weights in memory, and of what peers have not taken yet."""
        return self.newest.nbytes + self.unread

    def announced(self, peer: Peer, message: messages.Announce, _: Sequence[Buffer]) -> None:
        if not self._ledger.may_publish(peer.inc, message.version):
            self.peer_log.dropped("identity", "%s may not publish so", peer.name)
            return
        self.replies.send_all(peer.route, self.newest.announced(peer.inc, message))

    def pong(self) -> messages.LearnerPong:
        """Returns what a learner hears at every beat."""
        version = self._ledger.state.credit.version
        return messages.LearnerPong(self._inc, version, self.newest.fetch.version)

    def chunk(self, peer: Peer, message: messages.Chunk, buffers: Sequence[Buffer]) -> None:
        if not self.newest.came_from(peer.inc):
            self.peer_log.count("identity")
            return
        blob, more = self.newest.chunk(message, buffers[0] if buffers else b"", self._fetched)
        self.replies.send_all(peer.route, more)
        if blob is not None:
            said = blob.announce
            self.propagation.published(
                said.version, said.size, now=time.monotonic(), wall=time.time()
            )
            self._announce(said)

    def get(self, peer: Peer, message: messages.Get, _: Sequence[Buffer]) -> None:
        """Notes the chunks of one version that a peer asks for, each once however often it asks."""
        newer = self.newest.instead(message)
        if newer is not None:
            self.replies.send(peer.route, newer)
            message = messages.Get(newer.version, message.lo, message.hi)
        if message.version != peer.fetching:
            peer.fetching = message.version
            peer.asked.clear()
        peer.asked.update(dict.fromkeys(self.newest.indexes(message)))
        self._serve(peer)

    def _serve(self, peer: Peer) -> None:
        """Sends a peer the chunks it asked for, as far as its connection takes them: one at a time
        waits, and a peer that does not read is given nothing further."""
        while peer.asked and not peer.bulk:
            index = next(iter(peer.asked))
            del peer.asked[index]
            piece = self.newest.piece(peer.fetching, index)
            if piece is not None:
                self._limits.charge(peer.budget, nbytes=len(piece[1]))
                self.replies.bulk(peer, (peer.fetching, index), *piece)

    def _drained(self, route: bytes) -> None:
        """Goes on with a connection that took some of what waited there."""
        peer = self._roster.get(route)
        if peer is not None:
            self.replies.send_waiting(peer)

    def _fetched(self) -> set[int]:
        """Returns the versions that peers asked for and have not proved to act with."""
        return {peer.fetching for peer in self._roster.everybody()}

    def acting(self, peer: Peer, message: messages.Acting, _: Sequence[Buffer]) -> None:
        blob = self.newest.blob
        known = blob is not None and message.version == blob.announce.version
        if known and blob is not None and message.digest != blob.announce.digest:
            self.peer_log.log("%s: other weights than version %d", peer.name, message.version)
            return
        peer.acting = message.version
        if message.version >= peer.fetching:
            peer.fetching = -1
            peer.asked.clear()
        if peer.role == "actor":
            self._ledger.acts(peer.inc, message.version)
            self.propagation.first_used(message.version, now=peer.seen)
