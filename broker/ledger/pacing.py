"""Credit: which stream may start an unroll, so that sampling never runs ahead of learning. Pure.

    accepted + running <= (max_lag + version + 1) * batch

`batch` is this broker's part of what a step trains: the whole of it, unless there are several.

The unroll that takes place number n in that count (from 0) is trained by the step that ends version
n // batch; it may be at most max_lag versions old then, so it must be acted with at least version
n // batch - max_lag. That number travels with the grant.

Accepted is not counted but derived: version * batch unrolls were trained, whatever became of the
messages about them, and `present` are here and not yet trained. So no restart, no lost DONE and no
unroll trained twice can make the rule drift.

A stream whose sampler has no weights gets no credit. One that acts with weights more than max_lag
versions old (one, in lock-step), has delivered nothing yet, or lately held a place unused, is late:
it gets what no other wants, and a small share of the window that cannot stop a step.
"""

from collections import deque
from itertools import chain

from headrace.broker.ledger.balance import Balance
from headrace.broker.ledger.records import Stream
from headrace.broker.ledger.unroll_durations import UnrollDurations

# Unused credits of a stream: one running, one to start at once, two for the way there and back.
AHEAD = 4
# Streams that left and are still in one of the queues, before it is tidied.
_MOST_STALE = 1024
# One place in 8 is for streams that are late, as far as a batch has room beside it.
_LATE_SHARE = 8
# In lock-step every place is needed. A late stream that held its place longer than an unroll takes
# makes all late ones wait behind the prompt ones, for this many times the excess.
_LATE_PAUSE = 8


class Credit:
    """Applies the pacing rule and shares the credit fairly between the streams."""

    def __init__(self, *, batch: int, max_lag: int, balanced: bool = False) -> None:
        self.balance = Balance(on=balanced)
        self.max_lag = max_lag
        self.resize(batch)
        self.version = 0  # the newest that any rank trained; never falls
        self.present = 0  # arrived and not settled
        self.running = 0  # granted and not arrived, over all joined streams; overdue ones left out
        self.streams = 0  # joined
        self.now = 0.0  # the latest moment that a caller told the ledger
        self.withdrawn = 0  # credits that samplers gave back unused
        self.overdue = 0  # streams whose credit was no longer counted, each time
        # Open unrolls of samplers that another broker granted, and that still may count here.
        self.claims_left = self.window
        self.durations = UnrollDurations()  # of unrolls, from when they may start
        self._late_running = 0  # of `running`, held by streams that are late
        self._late_at = 0.0  # lock-step: until then no late stream comes first
        # Streams by the number of unused credits they hold. An entry whose stream has moved on
        # since is skipped when it comes out; `offered` keeps each stream to one entry a deque.
        self._prompt: tuple[deque[Stream], ...] = tuple(deque() for _ in range(AHEAD))
        self._late: tuple[deque[Stream], ...] = tuple(deque() for _ in range(AHEAD))

    def resize(self, batch: int) -> None:
        """Takes another part of each step; 0: it is trained on what other brokers have."""
        self.batch = max(1, batch)
        # Unrolls that may be accepted and running beyond those trained.
        self.window = (self.max_lag + 1) * batch
        # Places of it that late streams may hold although others want them: a batch fits beside
        # them. None in lock-step.
        self.late_share = min(max(1, self.window // _LATE_SHARE), self.window - batch)

    @property
    def accepted(self) -> int:
        """Counts the unrolls that were trained, or are here to be trained."""
        return self.version * self.batch + self.present

    @property
    def ahead(self) -> float:
        """Returns how many batches sampling is ahead of what was trained: running, queued or
        leased. At most max_lag + 1, except for what a revived sampler brings."""
        return (self.present + self.running) / self.batch

    def budget(self) -> int:
        """Counts the grants possible now; negative after a revived sampler brought its own."""
        return self.window - self.present - self.running

    def join(self, stream: Stream, *, arrived: int, started: int) -> None:
        """Adds a stream: it started the seqs below `started`, of which `arrived` came here.

        What it has open counts as far as we granted it, or another broker may have.
        """
        owed = stream.outstanding if stream.joined else stream.owed
        if stream.joined:
            self._out(stream)
        else:
            stream.since, stream.began = self.now, arrived
            self.streams += 1
        stream.arrived, stream.limit, stream.joined = arrived, started, True
        unknown = max(0, started - arrived - owed)
        believed = min(unknown, self.claims_left)
        self.claims_left -= believed
        stream.unbacked = unknown - believed
        self._in(stream)

    def leave(self, stream: Stream) -> None:
        """Removes a stream; its unused credit returns to all."""
        if stream.joined:
            self._ends(stream)
            self._out(stream)
            self.balance.leave(stream)
            self.streams -= 1
            stream.owed = stream.outstanding
            stream.joined = stream.asked = stream.overdue = False
            stream.limit, stream.unbacked = stream.arrived, 0

    def acts(self, stream: Stream, version: int) -> None:
        """Notes that the stream's sampler acts with these weights now."""
        if version != stream.acting:
            stream.acting = version
            if stream.joined:
                self._offer(stream, stream.running)

    def arrived(self, stream: Stream) -> None:
        """Counts a seq that is here for the first time: from running to accepted."""
        self.present += 1
        if stream.joined:
            if stream.outstanding:
                self.durations.add(self.now - stream.since, self.now)
            self._ends(stream)
            stream.since = self.now
        self._move(stream, 1, prompt=True)

    def must_come_again(self, stream: Stream) -> None:
        """Counts a seq that must come again: from present back to running."""
        self.present -= 1
        self._move(stream, -1)

    def settled(self) -> None:
        """Counts a settled unroll as gone; a trained one goes on to count by the version."""
        self.present -= 1

    def trained_before_restart(self, stream: Stream) -> None:
        """Counts a seq that we took for running and that was trained before we began."""
        self._move(stream, 1)

    def grant(self, most: int) -> list[Stream]:
        """Gives up to `most` credits: the emptiest stream first, of equals the longest waiting."""
        granted: dict[int, Stream] = {}
        for rested in self.balance.rested():
            self._offer(rested, rested.running)
        first = self.accepted + self.running
        for place in range(first, first + min(self.budget(), most)):
            needed = place // self.batch - self.max_lag
            stream = self._next()
            if stream is None:
                break
            if not self._out(stream):
                stream.since = self.now
            stream.late = stream.late or (self._is_behind(stream) and not stream.balanced)
            stream.floor_version = max(stream.floor_version, needed)
            if stream.unbacked:  # it says that it has one already
                stream.unbacked -= 1
            else:
                stream.limit = max(stream.limit, stream.arrived) + 1
            self._in(stream)
            granted[id(stream)] = stream
        return list(granted.values())

    def tidy(self) -> None:
        """Drops streams that left from the lines of those that wait; called now and then."""
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
        """Tells whether a stream without credit could start at once in a place that came free."""
        needed = (self.accepted + self.running - 1) // self.batch - self.max_lag
        waiting = chain(self._prompt[0], self._late[0])
        return any(self._waits(stream, 0) and stream.acting >= needed for stream in waiting)

    def held_too_long(self, stream: Stream, *, unused_s: float, late_s: float) -> bool:
        """Tells whether the stream's sampler must give back the credit it has not started on. A
        late stream is given longer while the late ones keep to their share: it may be fetching
        weights over a slow line."""
        within = stream.late and self._late_running <= max(1, self.late_share)
        return self.now - stream.since > (late_s if within else unused_s)

    def no_longer_counts(self, stream: Stream) -> None:
        """Stops counting a stream whose unrolls take longer than any other's: its place goes to
        others. What it delivers later is taken all the same."""
        self._ends(stream)
        self._out(stream)
        stream.late = stream.overdue = True
        self.balance.leave(stream)
        self.overdue += 1
        self.durations.gave_up()

    def given_back(self, stream: Stream, started: int) -> None:
        """Takes back what the sampler has not started: it says that it started the seqs below
        `started`, and it will start none above."""
        self._ends(stream)
        self._out(stream)
        stream.asked = False
        unused = max(0, stream.limit - max(started, stream.arrived))
        if unused:
            stream.limit -= unused
            stream.unbacked = min(stream.unbacked, max(0, stream.limit - stream.arrived))
            # Where the fast wait for the slow, one that plays is waited for.
            stream.late |= not (self.balance.on and started > stream.arrived)
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
            stream.supplied += arrived
        self._in(stream)

    def _ends(self, stream: Stream) -> None:
        """Makes the next late stream wait in proportion to the time this one wasted its place."""
        if stream.late and stream.running:
            wasted = max(0.0, self.now - stream.since - self.durations.usual_s)
            self._late_at = max(self._late_at, self.now + _LATE_PAUSE * wasted)

    def _out(self, stream: Stream) -> int:
        """Subtracts the stream from the totals before it changes; returns what it holds."""
        running = stream.running
        self.running -= running
        if stream.late:
            self._late_running -= running
        self.balance.take_out(stream)
        return running

    def _in(self, stream: Stream) -> None:
        """Adds the stream to the totals again after it changed."""
        running = stream.running
        self.running += running
        if stream.late:
            self._late_running += running
        self.balance.put_back(stream)
        self._offer(stream, running)

    def _offer(self, stream: Stream, count: int, *, late: bool = False) -> None:
        """Queues the stream for more than the `count` credits that it holds."""
        if count < AHEAD and not stream.asked and not stream.overdue:
            place = 1 << (AHEAD * late + count)
            if not stream.offered & place:
                stream.offered |= place
                (self._late if late else self._prompt)[count].append(stream)

    def _is_behind(self, stream: Stream) -> bool:
        """Tells whether its weights are too old. In lock-step the version before the newest is not:
        the next weights are on their way."""
        return stream.acting < self.version - max(1, self.max_lag)

    def _waits(self, stream: Stream, count: int) -> bool:
        """Tells whether the stream still waits, holding that many credits."""
        free = stream.joined and not stream.asked and not stream.overdue
        return free and stream.running == count

    def _next(self) -> Stream | None:
        """Returns the stream whose turn it is; late ones first as far as their share goes."""
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
                    continue  # it is queued again with its first weights
                if stream.late or self._is_behind(stream):
                    self._offer(stream, count, late=True)
                elif not self.balance.must_rest(stream):
                    return stream
        return None

    def _next_late(self) -> Stream | None:
        for count, waiting in enumerate(self._late):
            while waiting:
                stream = waiting.popleft()
                stream.offered &= ~(1 << AHEAD + count)
                if self._waits(stream, count):
                    return stream
        return None
