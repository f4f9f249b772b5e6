"""Credit, pure: who may start an unroll, so that sampling never runs ahead of learning.

    accepted + running <= (max_lag + version + 1) * batch

The unroll that takes place number n in that count (from 0) is trained by the step that ends version
n // batch; it may be at most max_lag versions old then, so it must be acted with at least version
n // batch - max_lag. That number travels with the grant.

Accepted is not counted but derived: version * batch unrolls were trained, whatever became of the
messages about them, and `present` are here and not yet trained. So no restart, no lost DONE and no
unroll trained twice can make the rule drift.
"""

from collections import deque

from broker.records import Stream

# Unused credits of a stream: one running, one to start at once, two for the way there and back.
AHEAD = 4


class Credit:
    """The pacing rule and its fair share."""

    def __init__(self, *, batch: int, max_lag: int) -> None:
        self.batch = batch
        self.max_lag = max_lag
        self.version = 0  # the newest that any rank trained; never falls
        self.present = 0  # arrived and not settled
        self.running = 0  # granted and not arrived, over all joined streams
        # Streams by the number of unused credits they hold. An entry whose stream has moved on
        # since is skipped when it comes out; `offered` keeps each stream to one entry a deque.
        self._by_running: tuple[deque[Stream], ...] = tuple(deque() for _ in range(AHEAD))

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
        """A stream takes part: it started seqs below `started`, of which `arrived` came here."""
        self.leave(stream)
        stream.arrived, stream.limit = arrived, started
        stream.joined = True
        self.running += stream.running
        self._offer(stream)

    def leave(self, stream: Stream) -> None:
        """Its unused credit returns to all."""
        if stream.joined:
            self.running -= stream.running
            stream.joined = False
            stream.limit = stream.arrived

    def arrive(self, stream: Stream) -> None:
        """A seq is here for the first time: it stops running and is accepted."""
        self.present += 1
        self._move(stream, 1)

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
            stream = self._emptiest()
            if stream is None:
                break
            place = self.accepted + self.running
            needed = place // self.batch - self.max_lag
            stream.floor_version = max(stream.floor_version, needed)
            stream.limit = max(stream.limit, stream.arrived) + 1
            self.running += 1
            self._offer(stream)
            granted[id(stream)] = stream
        return list(granted.values())

    def _move(self, stream: Stream, arrived: int) -> None:
        before = stream.running
        stream.arrived += arrived
        if stream.joined:
            self.running += stream.running - before
            self._offer(stream)

    def _offer(self, stream: Stream) -> None:
        count = stream.running
        if count < AHEAD and not stream.offered >> count & 1:
            stream.offered |= 1 << count
            self._by_running[count].append(stream)

    def _emptiest(self) -> Stream | None:
        for count, waiting in enumerate(self._by_running):
            while waiting:
                stream = waiting.popleft()
                stream.offered &= ~(1 << count)
                if stream.joined and stream.running == count:
                    return stream
        return None
