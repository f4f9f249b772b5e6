"""The messages about weights: rank 0 brings them, peers that act fetch them and prove it."""

import time
from collections.abc import Callable, Sequence

import msgspec

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import Buffer
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.rate_limits import RateLimits
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.propagation_times import PropagationTimes
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.kept_versions import KeptVersions
from headrace.broker.weights.slow_line import SlowLine
from headrace.broker.weights.snapshots import Snapshots

_CHANGES_SINCE = 3  # protocol: an older learner answers no GetDelta
_PAST_SINCE = 3  # protocol: to an older sampler all that is announced is the newest


class WeightMessages:
    """Keeps the newest weights, and handles the messages about them: a method for each message."""

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
        self.fetch = WeightFetch()  # asks the publisher for chunks, and verifies them
        self.blob: Blob | None = None  # newest whole weights
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
        self._kept = KeptVersions()
        self._publisher = 0  # incarnation of the rank that announced last
        self._line = SlowLine()  # from the publisher
        self._had_changes = False  # it was asked for changes the last time

    @property
    def unread(self) -> int:
        """Returns the bytes sent, of any kind, that peers have not taken yet."""
        return self.replies.pipes.nbytes

    @property
    def weight_bytes(self) -> int:
        """Returns the bytes of weights in memory: what comes in, and all versions that are kept."""
        return self.fetch.nbytes + self._kept.nbytes

    @property
    def nbytes(self) -> int:
        """Returns the bytes of weights in memory, and of what peers have not taken yet."""
        return self.weight_bytes + self.unread

    def is_publisher(self, inc: int) -> bool:
        """Tells whether that incarnation announced the newest weights."""
        return inc == self._publisher

    def keep_past(self, past: Snapshots[Blob]) -> None:
        """Keeps versions of before for samplers that come later, of a run with a league."""
        self._kept.past = past

    def tell_past(self, peer: Peer) -> None:
        """Tells a newcomer which versions of before there are."""
        for blob in self._kept.past.kept.values() if peer.protocol >= _PAST_SINCE else ():
            told = messages.Past(*msgspec.structs.astuple(blob.announce))
            self.replies.send(peer.route, told)

    def ask_again(self, peer: Peer) -> None:
        """Asks the publisher, at each of its beats, for what did not come."""
        if self.is_publisher(peer.inc):
            self.replies.send_all(peer.route, self.fetch.ask_missing())

    def pong(self) -> messages.LearnerPong:
        """Returns what a learner hears at every beat."""
        credit = self._ledger.state.credit
        return messages.LearnerPong(self._inc, credit.version, self.fetch.version, credit.streams)

    def announced(self, peer: Peer, message: messages.Announce, _: Sequence[Buffer]) -> None:
        if not self._ledger.may_publish(peer.inc, message.version):
            self.peer_log.dropped("identity", "%s may not publish so", peer.name)
            return
        self.fetch.by_changes &= self.is_publisher(peer.inc)
        self._publisher = peer.inc
        if not self.fetch.busy:
            self._line.begin(time.monotonic())
        for get in self.fetch.on_announce(message):
            by_changes = isinstance(get, messages.GetDelta)
            # The first chunk comes unasked, but to one that asked for changes the last time.
            lo = get.lo if by_changes or self._had_changes else max(1, get.lo)
            self._had_changes = by_changes
            if get.hi > lo:
                self.replies.send(peer.route, msgspec.structs.replace(get, lo=lo))

    def chunk(self, peer: Peer, message: messages.Chunk, buffers: Sequence[Buffer]) -> None:
        if not self.is_publisher(peer.inc):
            self.peer_log.count("identity")
            return
        body = buffers[0] if buffers else b""
        self._line.add(len(body))
        blob, more = self.fetch.on_chunk(message, body)
        self.replies.send_all(peer.route, more)
        if blob is None:
            return
        slow = self._line.ended(self.fetch.carried, time.monotonic())
        self.fetch.by_changes = slow and peer.protocol >= _CHANGES_SINCE
        self.blob = blob
        self._kept.add(self.blob, *self._needed())
        said = blob.announce
        self.propagation.published(said.version, said.size, now=time.monotonic(), wall=time.time())
        self._announce(said)

    def get(self, peer: Peer, message: messages.Get, _: Sequence[Buffer]) -> None:
        """Notes the chunks of one version that a peer asks for, each once however often it asks,
        and whether it asks for changes."""
        peer.base = message.base if isinstance(message, messages.GetDelta) else -1
        newer = self._kept.newer_instead(message)
        if newer is not None:
            self.replies.send(peer.route, newer)
            message = messages.Get(newer.version, message.lo, message.hi)
        if message.version != peer.fetching:
            peer.fetching = message.version
            peer.wanted_chunks.clear()
        peer.wanted_chunks.update(dict.fromkeys(self._kept.indexes(message)))
        self._serve(peer)

    def _serve(self, peer: Peer) -> None:
        """Sends a peer the chunks it asked for, as far as its connection takes them: one at a time
        waits, and a peer that does not read is given nothing further."""
        while peer.wanted_chunks and not peer.bulk:
            index = next(iter(peer.wanted_chunks))
            del peer.wanted_chunks[index]
            get = messages.GetDelta(peer.fetching, index, index + 1, peer.base)
            for chunk, body in self._kept.chunks(get):
                self._limits.charge(peer.budget, nbytes=len(body))
                self.replies.bulk(peer, (chunk.version, index), chunk, body)

    def _drained(self, route: bytes) -> None:
        """Goes on with a connection that took some of what waited there."""
        for peer in self._roster.reached_by(route):
            self.replies.send_waiting(peer)

    def _needed(self) -> tuple[set[int], set[int]]:
        """Returns the versions that peers asked for and have not proved to act with, and those that
        they have and ask for changes of."""
        peers = list(self._roster.everybody())
        return {peer.fetching for peer in peers}, {peer.base for peer in peers} - {-1}

    def acting(self, peer: Peer, message: messages.Acting, _: Sequence[Buffer]) -> None:
        newest = self.blob.announce if self.blob is not None else None
        same = newest is not None and message.version == newest.version
        if same and newest is not None and message.digest != newest.digest:
            self.peer_log.log("%s: other weights than version %d", peer.name, message.version)
            return
        peer.acting = message.version
        if message.version >= peer.fetching:
            peer.fetching = -1
            peer.wanted_chunks.clear()
            if peer.base >= 0:
                peer.base = message.version
        if peer.role == "actor":
            self._ledger.acts_with(peer.inc, message.version)
            self.propagation.first_used(message.version, now=peer.heard_at)
