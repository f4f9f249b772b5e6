"""The sampler's end of the ledger, pure: its streams, its credit, and everything not acknowledged.

    an unroll     may_start -> start -> put (kept, sent) -> acknowledged with an outcome
                                             |   ^
                                             +---+ named missing by a PONG, or a new broker: again

What is not acknowledged stays here: the broker may die at any moment.
"""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from headrace.broker.protocol.messages import (
    Ack,
    Buffer,
    Episodes,
    Limit,
    Outcome,
    Payload,
    Ping,
    Range,
    Recall,
    Returned,
    Unroll,
    encode,
    parts,
    ranges,
)


@dataclass(slots=True)
class FinishedUnroll:
    """Holds one unroll that is ready to be sent."""

    buffers: Sequence[Buffer]  # ours until it is acknowledged
    versions: tuple[int, int]
    steps: int
    digest: int
    ended: int = 0
    episodes: Episodes = ()


@dataclass(slots=True)
class _Stream:
    next: int = 0  # seq of the next unroll to put
    started: int = 0  # seqs below were started; next or next + 1
    limit: int = 0  # seqs below may be started
    # (limit, version): seqs below it, and not below the one before, must be acted with at least it.
    floors: list[tuple[int, int]] = field(default_factory=list)
    unacked: dict[int, tuple[Unroll, Sequence[Buffer]]] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return next(iter(self.unacked), self.next)

    @property
    def floor_version(self) -> int:
        """Returns the lowest version that the next unroll may be acted with."""
        return next((version for limit, version in self.floors if self.started < limit), 0)

    def grant(self, limit: int, version: int) -> None:
        """Takes credit. Each has its own floor: the first is not held back for a later one's."""
        if limit > self.limit:
            kept = [(upto, old) for upto, old in self.floors if self.started < upto <= self.limit]
            self.floors = [*kept, (limit, version)]
            self.limit = limit


class Outbox:
    """Keeps the open unrolls of one sampler process, whose number of streams is fixed."""

    def __init__(self, *, inc: int, streams: int) -> None:
        self.inc = inc
        self.generated = 0
        self.outcomes: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))
        self._streams = [_Stream() for _ in range(streams)]

    def __len__(self) -> int:
        """Counts the unrolls that are not acknowledged."""
        return sum(len(stream.unacked) for stream in self._streams)

    def may_start(self, stream: int, version: int) -> bool:
        """Tells whether there is credit, and whether the weights are new enough for it."""
        own = self._streams[stream]
        return own.started < own.limit and version >= own.floor_version

    def waits_for_weights(self, stream: int, version: int) -> bool:
        own = self._streams[stream]
        return own.started < own.limit and version < own.floor_version

    def start(self, stream: int) -> int:
        """Uses one credit; returns the seq."""
        own = self._streams[stream]
        assert own.started == own.next, "one unroll at a time in a stream"
        own.started += 1
        return own.next

    def put(self, stream: int, finished: FinishedUnroll) -> list[Payload]:
        """Keeps a finished unroll; returns the frames to send."""
        own = self._streams[stream]
        unroll = Unroll(
            inc=self.inc,
            stream=stream,
            seq=own.next,
            floor=own.floor,
            version_min=finished.versions[0],
            version_max=finished.versions[1],
            steps=finished.steps,
            digest=finished.digest,
            ended=finished.ended,
            episodes=finished.episodes,
        )
        own.unacked[own.next] = (unroll, finished.buffers)
        own.next += 1
        self.generated += 1
        return encode(unroll, *finished.buffers)

    def last(self, stream: int) -> int:
        """Returns the seq of the unroll put last."""
        return self._streams[stream].next - 1

    def on_limit(self, limit: Limit) -> None:
        for number, upto, version in limit.grants:
            if 0 <= number < len(self._streams):
                self._streams[number].grant(upto, version)

    def on_recall(self, recall: Recall) -> Returned:
        """Gives up unused credit, which others need: from now on nothing more may be started."""
        said = []
        for number, asked in recall.streams:
            if 0 <= number < len(self._streams):
                own = self._streams[number]
                own.limit = own.started
                said.append((number, asked, own.started))
        return Returned(tuple(said))

    def on_ack(self, ack: Ack) -> list[Range]:
        """Settles unrolls; returns those that were waiting for it."""
        settled: list[Range] = []
        for number, lo, hi in ack.ranges:
            if not 0 <= number < len(self._streams):
                continue
            unacked = self._streams[number].unacked
            known = [seq for seq in unacked if lo <= seq < hi]
            for seq in known:
                del unacked[seq]
            self.outcomes[Outcome(ack.outcome)] += len(known)
            settled += [(number, first, end) for first, end in ranges(known)]
        return settled

    def unaccounted(self) -> int:
        """Returns generated - settled - here; anything but 0 is our bug."""
        return self.generated - sum(self.outcomes.values()) - len(self)

    def resend(self, missing: Sequence[Range]) -> list[tuple[tuple[int, int], list[Payload]]]:
        """Returns (stream, seq) and frames of what the broker does not have."""
        out = []
        for number, lo, hi in missing:
            if 0 <= number < len(self._streams):
                unacked = self._streams[number].unacked
                out += [sent for seq, sent in unacked.items() if lo <= seq < hi]
        return [((unroll.stream, unroll.seq), encode(unroll, *rest)) for unroll, rest in out]

    def hello_streams(self) -> tuple[tuple[int, int, int, int, tuple[tuple[int, int], ...]], ...]:
        """Returns, for HELLO, where every stream stands. Unused credit ends; LIMIT grants new
        credit."""
        out = []
        for number, own in enumerate(self._streams):
            own.limit = own.started
            own.floors.clear()
            out.append((number, own.floor, own.next, own.started, ranges(list(own.unacked))))
        return tuple(out)

    def unacked(self, *, waiting: Container[tuple[int, int]] = ()) -> list[Range]:
        """Returns all that is open, except what waits to be sent."""
        return [
            (number, lo, hi)
            for number, own in enumerate(self._streams)
            for lo, hi in ranges([seq for seq in own.unacked if (number, seq) not in waiting])
        ]

    def pings(
        self, stats: dict[str, float], version: int, *, waiting: Container[tuple[int, int]] = ()
    ) -> list[Ping]:
        """Returns one beat; more than one message when much is open. A ping overtakes what waits to
        be sent, so it must not name that: it would look lost."""
        open_ranges = parts(self.unacked(waiting=waiting)) or [()]
        return [Ping(part, stats, version) for part in open_ranges]

    def abandon(self) -> list[Range]:
        """Settles all that is open as abandoned, never to be acknowledged; returns its ranges."""
        gone = self.unacked()
        for own in self._streams:
            self.outcomes[Outcome.ABANDONED] += len(own.unacked)
            own.unacked.clear()
            own.limit = own.started
        return gone
