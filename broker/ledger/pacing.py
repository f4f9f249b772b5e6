"""Credit, pure: who may start an unroll, so that sampling never runs ahead of learning.

    accepted + running <= (max_lag + version + 1) * batch

The unroll that takes place number n in that count (from 0) is trained by the step that ends version
n // batch; it may be at most max_lag versions old then, so it must be acted with at least version
n // batch - max_lag. That number travels with the grant.

Accepted is not counted but derived: version * batch unrolls were trained, whatever became of the
messages about them, and `present` are here and not yet trained. So no restart, no lost DONE and no
unroll trained twice can make the rule drift.

Who acts with nothing gets no credit. Who acts with weights that are more than max_lag versions old
(one, in lock-step), has delivered nothing yet, or held a place lately and did not use it, is late:
it gets what nobody else wants, and a small share of the window that cannot stop a step.
"""

from collections import deque

from headrace.broker.ledger.durations import Durations
from headrace.broker.ledger.records import Stream

# Unused credits of a stream: one running, one to start at once, two for the way there and back.
AHEAD = 4
# Streams that left, in each line of those that wait.
_MOST_STALE = 1024
# One place in so many is for streams that are late, as far as a batch has room beside it.
_LATE_SHARE = 8
# In lock-step every place is needed: so many times as long as the last late one held its place
# beyond what an unroll takes, none of them gets another before those that are prompt.
_LATE_PAUSE = 8


class Credit:
    """The pacing rule and its fair share."""

    def __init__(self, *, batch: int, max_lag: int) -> None:
        self.batch = batch
        self.max_lag = max_lag
        self.version = 0  # the newest that any rank trained; never falls
        self.present = 0  # arrived and not settled
        self.running = 0  # granted and not arrived, over all joined streams; overdue ones left out
        self.streams = 0  # joined
        self.now = 0.0  # the latest moment that anybody told the ledger
        self.withdrawn = 0  # credits that samplers gave back unused
        self.overdue = 0  # streams whose credit was no longer counted, each time
        # Unrolls that may be accepted and running beyond those trained.
        self.window = (max_lag + 1) * batch
        # Places of it that late streams may hold although others want them: a batch fits beside
        # them. None in lock-step.
        self.late_share = min(max(1, self.window // _LATE_SHARE), self.window - batch)
        # Open unrolls of samplers that another broker granted, and that still may count here.
        self.claims_left = self.window
        self.durations = Durations()  # of unrolls, from when they may start
        self._late_running = 0  # of `running`, held by streams that are late
        self._late_at = 0.0  # lock-step: no late one comes first before then
        # Streams by the number of unused credits they hold. An entry whose stream has moved on
        # since is skipped when it comes out; `offered` keeps each stream to one entry a deque.
        self._prompt: tuple[deque[Stream], ...] = tuple(deque() for _ in range(AHEAD))
        self._late: tuple[deque[Stream], ...] = tuple(deque() for _ in range(AHEAD))

    @property
    def accepted(self) -> int:
        """Trained, and here to be trained."""
        return self.version * self.batch + self.present

    @property
    def ahead(self) -> float:
        """Batches that are under way, waiting, or at learners: how far sampling is ahead of what
        was trained. At most max_lag + 1, but for what a revived sampler brings."""
        return (self.present + self.running) / self.batch

    def budget(self) -> int:
        """Grants possible now. Negative after a revived sampler brought what it had started."""
        return (self.max_lag + self.version + 1) * self.batch - self.accepted - self.running

    def join(self, stream: Stream, *, arrived: int, started: int) -> None:
        """A stream takes part: it started seqs below `started`, of which `arrived` came here.

        What it has open counts as far as we granted it, or another broker may have.
        """
        owed = stream.outstanding if stream.joined else stream.owed
        if stream.joined:
            self._out(stream)
        else:
            stream.since = self.now
            self.streams += 1
        stream.arrived, stream.limit, stream.joined = arrived, started, True
        unknown = max(0, started - arrived - owed)
        believed = min(unknown, self.claims_left)
        self.claims_left -= believed
        stream.unbacked = unknown - believed
        self._in(stream)

    def leave(self, stream: Stream) -> None:
        """Its unused credit returns to all."""
        if stream.joined:
            self._ends(stream)
            self._out(stream)
            self.streams -= 1
            stream.owed = stream.outstanding
            stream.joined = stream.asked = stream.overdue = False
            stream.limit, stream.unbacked = stream.arrived, 0

    def acts(self, stream: Stream, version: int) -> None:
        """Its sampler acts with these weights now."""
        if version != stream.acting:
            stream.acting = version
            if stream.joined:
                self._offer(stream, stream.running)

    def arrive(self, stream: Stream) -> None:
        """A seq is here for the first time: it stops running and is accepted."""
        self.present += 1
        if stream.joined:
            if stream.outstanding:
                self.durations.add(self.now - stream.since, self.now)
            self._ends(stream)
            stream.since = self.now
        self._move(stream, 1, prompt=True)

    def unarrive(self, stream: Stream) -> None:
        """It must come again: from present back to running."""
        self.present -= 1
        self._move(stream, -1)

    def end(self) -> None:
        """A present unroll is settled: trained ones go on to count by the version."""
        self.present -= 1

    def arrived_before(self, stream: Stream) -> None:
        """A seq that we took for running was trained before we began."""
        self._move(stream, 1)

    def grant(self, most: int) -> list[Stream]:
        """Give up to `most` credits, the emptiest stream first, the longest waiting of equals."""
        granted: dict[int, Stream] = {}
        for _ in range(min(self.budget(), most)):
            place = self.accepted + self.running
            needed = place // self.batch - self.max_lag
            stream = self._next()
            if stream is None:
                break
            if not self._out(stream):
                stream.since = self.now
            stream.late = stream.late or self._is_behind(stream)
            stream.floor_version = max(stream.floor_version, needed)
            if stream.unbacked:  # it says that it has one already
                stream.unbacked -= 1
            else:
                stream.limit = max(stream.limit, stream.arrived) + 1
            self._in(stream)
            granted[id(stream)] = stream
        return list(granted.values())

    def tidy(self) -> None:
        """Now and then: streams that left do not wait, whoever comes and goes."""
        for bit, waiting in enumerate((*self._prompt, *self._late)):
            if len(waiting) > self.streams + _MOST_STALE:
                for _ in range(len(waiting)):
                    stream = waiting.popleft()
                    if stream.joined:
                        waiting.append(stream)
                    else:
                        stream.offered &= ~(1 << bit)

    # ---- credit that is not used ----------------------------------------------------------------

    def wanted(self) -> bool:
        """Is there a stream without credit that could start at once in a place that came free?"""
        needed = (self.accepted + self.running - 1) // self.batch - self.max_lag
        return any(
            self._waits(stream, 0) and stream.acting >= needed
            for waiting in (self._prompt[0], self._late[0])
            for stream in waiting
        )

    def held_too_long(self, stream: Stream, *, unused_s: float, late_s: float) -> bool:
        """Must its sampler give back what it has not started? What is late is given longer, as long
        as it keeps to its share: it may be fetching weights over a slow line."""
        within = stream.late and self._late_running <= max(1, self.late_share)
        longest = late_s if within else unused_s
        return self.now - stream.since > longest

    def no_longer_counts(self, stream: Stream) -> None:
        """Its unrolls take longer than any here: the place is for others. Delivered, they are
        taken all the same."""
        self._ends(stream)
        self._out(stream)
        stream.late = stream.overdue = True
        self.overdue += 1
        self.durations.gave_up()

    def given_back(self, stream: Stream, started: int) -> None:
        """The sampler's answer: it started seqs below, and will start none above."""
        self._ends(stream)
        self._out(stream)
        stream.asked = False
        unused = max(0, stream.limit - max(started, stream.arrived))
        if unused:
            stream.limit -= unused
            stream.unbacked = min(stream.unbacked, max(0, stream.limit - stream.arrived))
            stream.late = True
            self.withdrawn += unused
            stream.overdue &= stream.outstanding > 0
        self._in(stream)

    # ---- inside ---------------------------------------------------------------------------------

    def _move(self, stream: Stream, arrived: int, *, prompt: bool = False) -> None:
        if not stream.joined:
            stream.arrived += arrived
            stream.owed = max(0, stream.owed - arrived)
            return
        self._out(stream)
        stream.arrived += arrived
        stream.unbacked = min(stream.unbacked, max(0, stream.limit - stream.arrived))
        if prompt:
            stream.late = stream.overdue = False
        self._in(stream)

    def _ends(self, stream: Stream) -> None:
        """A late stream gives up its place: the next such one waits in proportion."""
        if stream.late and stream.running:
            wasted = max(0.0, self.now - stream.since - self.durations.usual_s)
            self._late_at = max(self._late_at, self.now + _LATE_PAUSE * wasted)

    def _out(self, stream: Stream) -> int:
        """Returns how much it holds; what follows changes that."""
        running = stream.running
        self.running -= running
        if stream.late:
            self._late_running -= running
        return running

    def _in(self, stream: Stream) -> None:
        running = stream.running
        self.running += running
        if stream.late:
            self._late_running += running
        self._offer(stream, running)

    def _offer(self, stream: Stream, count: int, *, late: bool = False) -> None:
        """Lets it wait for more than the `count` credits that it holds."""
        if count < AHEAD and not stream.asked and not stream.overdue:
            place = 1 << (AHEAD * late + count)
            if not stream.offered & place:
                stream.offered |= place
                (self._late if late else self._prompt)[count].append(stream)

    def _is_behind(self, stream: Stream) -> bool:
        """In lock-step the weights before the newest do: the next are on their way."""
        return stream.acting < self.version - max(1, self.max_lag)

    def _waits(self, stream: Stream, count: int) -> bool:
        """Does it still wait with so many credits?"""
        free = stream.joined and not stream.asked and not stream.overdue
        return free and stream.running == count

    def _next(self) -> Stream | None:
        """Whose turn it is; the late ones first as far as their share goes."""
        if self.late_share:
            turn = self._late_running < self.late_share
        else:
            turn = not self._late_running and self.now >= self._late_at
        first = self._next_late() if turn else None
        return first or self._next_prompt() or self._next_late()

    def _next_prompt(self) -> Stream | None:
        for count, waiting in enumerate(self._prompt):
            while waiting:
                stream = waiting.popleft()
                stream.offered &= ~(1 << count)
                if not self._waits(stream, count) or stream.acting < 0:
                    continue  # its first weights bring it back
                if not stream.late and not self._is_behind(stream):
                    return stream
                self._offer(stream, count, late=True)
        return None

    def _next_late(self) -> Stream | None:
        for count, waiting in enumerate(self._late):
            while waiting:
                stream = waiting.popleft()
                stream.offered &= ~(1 << AHEAD + count)
                if self._waits(stream, count):
                    return stream
        return None
