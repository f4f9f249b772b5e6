"""The ledger's state: what is here, who holds it, how it ended, and the moves between. Pure.

Every unroll enters by `add` and ends by `settle`; nothing else counts.
"""

from collections import Counter, deque
from collections.abc import Iterator

from headrace.broker.histograms import Buckets
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.leases import Leases
from headrace.broker.ledger.pacing import Credit
from headrace.broker.ledger.records import Actor, Effects, Entry, Session, Stream
from headrace.broker.protocol.messages import Outcome, Range, parts, ranges

# Dead incarnations remembered for dedup, their streams and seqs; the oldest are forgotten first.
_MOST_DEAD = 4096
_MOST_DEAD_STREAMS = 65536
_MOST_DEAD_SEQS = 1 << 20
# Leases that credit may stay unused while others wait: of a prompt stream, of a late one.
_UNUSED_LEASES, _LATE_LEASES = 0.25, 2.0


class LedgerState:
    """Holds every unroll at the broker: queued, leased or settled, and the moves between these."""

    def __init__(
        self,
        *,
        batch: int,
        share: int = 0,
        max_lag: int,
        balanced: bool = False,
        max_lag_hard: int,
        queue_bytes: int,
        attempts: int,
        first_tag: int,
        journal: Journal | None = None,
    ) -> None:
        self.batch = batch  # unrolls of a step, from all brokers
        self.alone = not share  # there is no other broker
        self.credit = Credit(batch=share or batch, max_lag=max_lag, balanced=balanced)
        self.leases = Leases(first_tag=first_tag)
        self.max_lag_hard = max_lag_hard
        self.queue_bytes = queue_bytes
        self.attempts = attempts
        self.unroll_bytes = 0  # of one unroll by the run's spaces; 0 until they are known
        self.actors: dict[int, Actor] = {}  # by incarnation, in order of their latest HELLO
        self.queue: deque[Entry] = deque()
        self.entries = 0  # queued + leased
        self.nbytes = 0  # of their buffers
        self.received = 0  # distinct unrolls that ever were here
        self.copies = 0  # further arrivals of those
        # Seqs of one stream from its floor on that may be remembered: far above what credit leaves
        # an honest one.
        self.window = 4096 + 2 * (max_lag + 1) * batch
        self.redelivered = 0
        self.ages = Buckets([0.01 * 2**n for n in range(14)])  # seconds from arriving to the end
        self.outcomes: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))
        self.touched: dict[int, Actor] = {}  # actors with acks or limits to send
        self.expelled: list[Actor] = []  # thrown out, and not told yet
        self._journal = journal or Journal(None, "")  # hears of every end before any peer does
        # Seqs that ended since the last pump, by (incarnation, stream, outcome).
        self._ends: dict[tuple[int, int, Outcome], list[int]] = {}
        self._journal.window((max_lag + 1) * batch)

    def streams(self) -> Iterator[Stream]:
        """Yields every stream that is remembered."""
        for actor in self.actors.values():
            yield from actor.streams.values()

    def stream(self, actor: Actor, number: int) -> Stream:
        stream = actor.streams.get(number)
        if stream is None:
            stream = actor.streams[number] = Stream(actor=actor.inc, number=number)
        return stream

    def stream_of(self, inc: int, number: int) -> Stream:
        """Returns the stream that a learner names; its sampler may not be back yet."""
        actor = self.actors.get(inc)
        if actor is None:
            actor = self.actors[inc] = Actor(inc=inc, name="", alive=False)
        return self.stream(actor, number)

    def add(self, entry: Entry) -> None:
        """Enters an unroll that is here for the first time."""
        entry.since = self.credit.now
        entry.stream.present[entry.unroll.seq] = entry
        self.received += 1
        self.entries += 1
        self.nbytes += entry.nbytes
        self.credit.arrived(entry.stream)
        self._journal.arrived(entry.unroll)

    def _remove(self, entry: Entry) -> None:
        del entry.stream.present[entry.unroll.seq]
        self.leases.release(entry)
        entry.gone = True
        entry.buffers = None  # the queue may hold the entry for a while; not its body
        self.entries -= 1
        self.nbytes -= entry.nbytes

    def settle(self, entry: Entry, outcome: Outcome, blame: str = "") -> None:
        """Ends an unroll; the only place where one ends. `blame`: why its sampler is at fault."""
        self._remove(entry)
        self.ages.add(self.credit.now - entry.since)
        self.credit.settled()
        self.outcomes[outcome] += 1
        if entry.unroll.seq >= entry.stream.floor:  # else it would never be asked for nor forgotten
            entry.stream.settled[entry.unroll.seq] = outcome
        unroll = entry.unroll
        self._ends.setdefault((unroll.inc, unroll.stream, outcome), []).append(unroll.seq)
        self.ack(entry.stream, unroll.seq, outcome)
        if outcome is Outcome.TRAINED:
            entry.stream.trained_steps += unroll.steps
        if outcome is Outcome.TRAINED or (outcome is Outcome.REJECTED and blame):
            self._expel_if_bad(entry.stream.actor, blame if outcome is Outcome.REJECTED else "")

    def _expel_if_bad(self, inc: int, blame: str) -> None:
        """Expels the sampler if this unroll was one bad one too many. Its other unrolls stay here:
        they are judged one by one."""
        actor = self.actors.get(inc)
        if actor is None or not actor.judge(refused=bool(blame)) or actor.expelled:
            return
        actor.expelled = (
            "too many of its latest unrolls could not be used, the last because:"
            f" {blame}; mend it and start it again"
        )
        self.mark_dead(actor)
        self.expelled.append(actor)

    def ack(self, stream: Stream, seq: int, outcome: Outcome) -> None:
        actor = self.actors.get(stream.actor)
        if actor is not None and actor.alive:
            actor.acks.setdefault((stream.number, outcome), []).append(seq)
            self.touched[actor.inc] = actor

    def requeue(self, entry: Entry) -> None:
        """Ends a lease: the unroll waits again, is asked for again, or has used up its attempts."""
        self.redelivered += 1
        if entry.buffers is None:
            # Only the sampler has it: forget it here, its next PING names it and PONG asks for it.
            self._remove(entry)
            self.received -= 1
            self.credit.must_come_again(entry.stream)
        elif entry.attempt >= self.attempts:
            self.settle(entry, Outcome.POISON)
        else:
            self.leases.release(entry)
            self.queue.appendleft(entry)

    def redeliver(self, entry: Entry) -> None:
        """Queues an unroll for the same learner again: DELIVER or the answer got lost. Costs no
        attempt.

        Another rank would train it twice if it was the DONE that got lost.
        """
        entry.home = entry.session
        entry.attempt -= 1
        self.requeue(entry)

    def forget_session(self, session: Session) -> None:
        """Ends a learner session; its leases go back to the queue in their order."""
        self.leases.leave(session)
        for _, entry in sorted(session.leases.items(), reverse=True):
            self.requeue(entry)

    def mark_dead(self, actor: Actor) -> None:
        """Marks a sampler as dead: its credit returns to all."""
        actor.alive = False
        actor.acks.clear()
        for stream in actor.streams.values():
            self.credit.leave(stream)

    def forget_dead(self) -> None:
        """Forgets the oldest dead samplers beyond the limits. It looks at all: call it rarely."""
        dead = [a for a in self.actors.values() if not a.alive]
        count, streams = len(dead), sum(len(a.streams) for a in dead)
        seqs = [sum(len(stream.settled) for stream in a.streams.values()) for a in dead]
        left = sum(seqs)
        for actor, own in zip(dead, seqs, strict=True):
            if count <= _MOST_DEAD and streams <= _MOST_DEAD_STREAMS and left <= _MOST_DEAD_SEQS:
                return
            if not any(stream.present for stream in actor.streams.values()):
                del self.actors[actor.inc]
                count, streams, left = count - 1, streams - len(actor.streams), left - own

    def oldest_s(self) -> float:
        """Returns the age in seconds of what has been here longest: the head of the queue, or of a
        session's leases. The thread that serves metrics asks too, so it looks at copies."""
        queue = self.queue.copy()
        heads = [queue[0]] if queue else []
        for session in list(self.leases.sessions.values()):
            heads += list(session.leases.values())[:1]
        return max((self.credit.now - entry.since for entry in heads), default=0.0)

    def dispatch(self, effects: Effects) -> None:
        """Leases the queue's unrolls in order to the ranks that have room."""
        while self.queue:
            entry = self.queue[0]
            home = self.leases.session(entry.home)
            session = home or self.leases.most_room(max(1, self.credit.window))
            if entry.gone or entry.tag >= 0:  # settled or adopted while it waited
                self.queue.popleft()
            elif home is None and entry.waited(self.credit.version) > self.max_lag_hard:
                self.queue.popleft()
                effects.stale.append((entry, entry.waited(self.credit.version)))
                self.settle(entry, Outcome.STALE)
            elif session is not None:
                self.queue.popleft()
                self.leases.lease(session, entry)
                self._journal.leased(entry.unroll)
                effects.deliver.append(entry)
            else:
                return

    def grant(self) -> None:
        """Grants the credit that pacing and memory allow."""
        for stream in self.credit.grant(self._room()):
            self._tell(stream)

    def _room(self) -> int:
        """Returns how many unrolls may be granted now."""
        most = self.credit.budget()
        if self.unroll_bytes:
            free = self.queue_bytes - self.nbytes - self.credit.running * self.unroll_bytes
            most = min(most, free // self.unroll_bytes)
        return most

    def _tell(self, stream: Stream) -> None:
        """Notes that the stream's sampler must hear of its credit."""
        actor = self.actors[stream.actor]
        actor.granted.add(stream.number)
        self.touched[actor.inc] = actor

    def reclaim(self, lease_s: float) -> None:
        """Frees places when none is left and a stream could use one: samplers that hold unused
        credit are asked for it, and an overdue stream is no longer counted nor waited for."""
        credit = self.credit
        full = self._room() <= 0 and credit.wanted()
        if not full and not credit.balance.resting:
            return
        overdue_s = credit.durations.overdue_s(lease_s)
        unused_s, late_s = _UNUSED_LEASES * lease_s, _LATE_LEASES * lease_s
        holding = [stream for stream in self.streams() if stream.running]
        for stream in holding:
            if not stream.joined:
                continue
            if self.credit.now - stream.since > overdue_s:
                credit.no_longer_counts(stream)
            elif (
                full
                and not stream.asked
                and credit.held_too_long(stream, unused_s=unused_s, late_s=late_s)
            ):
                stream.asked, stream.asks = True, stream.asks + 1
                self._tell(stream)

    def add_replies(self, effects: Effects) -> None:
        """Journals what ended; then adds the acknowledgements and credit to be sent to samplers."""
        self._journal.settled(self._ends)
        self._ends.clear()
        for actor in self.touched.values():
            if actor.alive:
                self._collect_for(actor, effects)
        self.touched.clear()
        effects.expelled, self.expelled = self.expelled, []

    def _collect_for(self, actor: Actor, effects: Effects) -> None:
        by_outcome: dict[Outcome, list[Range]] = {}
        for (number, outcome), seqs in actor.acks.items():
            runs = ranges(sorted(set(seqs)))
            by_outcome.setdefault(outcome, []).extend((number, lo, hi) for lo, hi in runs)
        streams = [actor.streams[n] for n in actor.granted]
        # A limit sent again would undo what the sampler gives back.
        limits = [(s.number, s.limit, s.floor_version) for s in streams if not s.asked]
        recalls = [(s.number, s.asks) for s in streams if s.asked]
        actor.acks.clear()
        actor.granted.clear()
        for outcome, acked in by_outcome.items():
            effects.acks += [(actor.inc, outcome, part) for part in parts(acked)]
        effects.limits += [(actor.inc, part) for part in parts(limits)]
        effects.recalls += [(actor.inc, part) for part in parts(recalls)]
