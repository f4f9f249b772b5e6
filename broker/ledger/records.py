"""Plain records of the ledger: unrolls, streams, samplers, learner sessions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.broker.protocol.messages import (
    Ack,
    Deliver,
    Limit,
    Message,
    Outcome,
    Payload,
    Range,
    Recall,
    Unroll,
)


@dataclass(slots=True, eq=False)
class Entry:
    """Holds one unroll that is here, queued or leased."""

    stream: "Stream"
    unroll: Unroll
    buffers: Sequence[Payload] | None  # None: the learner holds it and only the sampler has a copy
    nbytes: int
    attempt: int = 0  # deliveries so far
    tag: int = -1  # of the current lease; -1 = queued
    session: int = 0  # learner incarnation that holds the lease
    home: int = 0  # learner that may have it or may have trained it; while it lives, none else may
    since: float = 0.0  # when it arrived
    gone: bool = False  # settled or forgotten; the queue skips it

    def waited(self, version: int) -> int:
        """Counts the versions between its newest step and this one; 0 = fewer than it took to play.

        A slow environment's newest step may be old on arrival already: never by more than the
        steps before it took.
        """
        newest = self.unroll.version_max
        waited = version - newest
        return waited if waited > newest - self.unroll.version_min else 0

    def deliver(self, actor: str) -> Deliver:
        """Returns the DELIVER message with which its learner hears of the lease."""
        unroll = self.unroll
        return Deliver(
            self.tag,
            self.attempt,
            actor,
            unroll.inc,
            unroll.stream,
            unroll.seq,
            unroll.floor,
            unroll.version_min,
            unroll.version_max,
            unroll.steps,
            unroll.digest,
            unroll.ended,
            unroll.episodes,
        )


@dataclass(slots=True, eq=False)
class Stream:
    """Describes one sequence of unrolls: one group of environments of one sampler process."""

    actor: int
    number: int
    floor: int = 0  # every seq below is settled for the sampler
    began: int = 0  # what `arrived` was when it joined
    arrived: int = 0  # distinct seqs below the limit that arrived or ended
    limit: int = 0  # absolute credit: seqs below may start
    floor_version: int = 0  # the newest grant asks to act with at least this version
    joined: bool = False  # takes part in pacing
    unbacked: int = 0  # of the open ones, those that were never granted; they wait for credit
    owed: int = 0  # of a stream that left: granted here, and not arrived
    since: float = 0.0  # when its oldest credit could be used: granted, or the last one arrived
    acting: int = -1  # version of the weights that its sampler has; -1 = none
    late: bool = True  # it delivered nothing since it joined, or since it let a credit lie
    overdue: bool = False  # what it runs is not counted any more
    asked: bool = False  # it must say what it started: it gets no credit until then
    asks: int = 0  # how often it was asked; the answer names the number
    balanced: bool = False  # compared with the others, so that none gets far ahead
    supplied: int = 0  # unrolls since then, from what the slowest had supplied on
    trained_steps: int = 0  # live steps of its unrolls that were trained
    # Bit n, or AHEAD + n: it waits among the prompt, or the late ones, with n unused credits.
    offered: int = 0
    present: dict[int, Entry] = field(default_factory=dict)  # seq -> queued or leased
    settled: dict[int, Outcome] = field(default_factory=dict)  # seq >= floor -> how it ended

    @property
    def outstanding(self) -> int:
        """Counts the granted seqs that have not arrived."""
        count = self.limit - self.arrived - self.unbacked
        return count if count > 0 else 0

    @property
    def running(self) -> int:
        """Counts the outstanding seqs that pacing counts: none of an overdue stream."""
        return 0 if self.overdue else self.outstanding

    def outcome_of(self, seq: int) -> Outcome | None:
        """Returns how a seq ended; any answer below the floor, for it only stops a resend."""
        return Outcome.TRAINED if seq < self.floor else self.settled.get(seq)

    def known(self, seq: int) -> bool:
        return seq in self.present or self.outcome_of(seq) is not None

    def forget_below(self, floor: int) -> None:
        """Raises the floor and forgets the outcomes below: the sampler has them all."""
        if floor > self.floor:
            self.floor = floor
            for seq in [seq for seq in self.settled if seq < floor]:
                del self.settled[seq]


# A sampler is expelled when 20 of its latest 32 unrolls could not be used. One whose environment
# fails now and then never comes near; one that sends nothing else is soon out.
_JUDGED, _MOST_REFUSED = 32, 20


@dataclass(slots=True, eq=False)
class Actor:
    """Describes one sampler process. Kept after its death: its dedup windows must outlive it."""

    inc: int
    name: str
    user: str | None = None  # whose key said it first; None = only a learner spoke of it
    alive: bool = True
    heard_at: float = 0.0
    streams: dict[int, Stream] = field(default_factory=dict)
    acks: dict[tuple[int, Outcome], list[int]] = field(default_factory=dict)  # not sent yet
    granted: set[int] = field(default_factory=set)  # streams whose LIMIT or RECALL is not sent yet
    judged: int = 0  # its latest unrolls, one bit each: 1 = unusable by the sampler's own fault
    expelled: str = ""  # why it is thrown out, for its user; "" = it is not

    def judge(self, *, refused: bool) -> bool:
        """Remembers whether one more unroll was unusable; True = too many of the latest were."""
        self.judged = (self.judged << 1 | refused) & (1 << _JUDGED) - 1
        return refused and self.judged.bit_count() >= _MOST_REFUSED


@dataclass(slots=True, eq=False)
class Session:
    """Describes one learner rank's process."""

    inc: int
    rank: int
    world: int
    want: int  # deliveries since its HELLO that it is ready for
    given: int = 0  # deliveries since its HELLO
    began: int = 0  # the version that its latest HELLO was told
    trained: int = 0  # leases that it said DONE for since
    group: int = 0  # all ranks of one learner say the same
    since: float = 0.0  # when its first HELLO came
    heard_at: float = 0.0
    leases: dict[int, Entry] = field(default_factory=dict)  # by tag


@dataclass(slots=True)
class Effects:
    """Lists what the server must send, and what it must say of unrolls that were dropped."""

    deliver: list[Entry] = field(default_factory=list)
    stale: list[tuple[Entry, int]] = field(default_factory=list)  # settled; versions it waited
    acks: list[tuple[int, Outcome, tuple[Range, ...]]] = field(default_factory=list)
    limits: list[tuple[int, tuple[tuple[int, int, int], ...]]] = field(default_factory=list)
    expelled: list[Actor] = field(default_factory=list)  # to be refused
    recalls: list[tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=list)

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Yields what samplers must hear, each with the incarnation that it is for."""
        yield from ((inc, Ack(outcome, acked)) for inc, outcome, acked in self.acks)
        yield from ((inc, Limit(grants)) for inc, grants in self.limits)
        yield from ((inc, Recall(asked)) for inc, asked in self.recalls)
