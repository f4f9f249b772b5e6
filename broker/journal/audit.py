"""Joins the journals of all processes of a run: what was generated, and how every unroll ended.

generated = trained + stale + shed + rejected + poison + abandoned + in flight, unroll by unroll,
for each incarnation of a sampler. What breaks that, or makes a process's word untrue, is a gap.

A run may still be going. Each process writes before it tells: so samplers' journals are read first
(what they heard, brokers and learners wrote before), and once more for what they generated since.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.journal import reader as journals
from headrace.broker.journal.compaction import Spans
from headrace.broker.journal.fates import IN_FLIGHT, OUTCOMES, TRAINED, Marks
from headrace.broker.journal.reader import Journal, Role, Stream

# Most unrolls of one stream: a thousand a second for fifty days. A damaged number must not ask for
# all the memory there is.
_MOST = 1 << 32
_MOST_STREAMS = 1 << 16  # of one sampler, for the same reason


@dataclass(slots=True)
class Sampler:
    """Holds how the unrolls of one incarnation of a sampler ended."""

    name: str
    inc: int
    ended: bool  # in order; else it runs, or was killed
    fates: list[int]  # by OUTCOMES, then in flight

    @property
    def generated(self) -> int:
        return sum(self.fates)

    @property
    def in_flight(self) -> int:
        return self.fates[IN_FLIGHT]

    def too_many(self, window: int) -> int:
        """Counts what is in flight beyond what it can have left open: nothing after an end in
        order, else at most what pacing lets be open at once."""
        if self.ended:
            return self.in_flight
        return max(0, self.in_flight - window) if window else 0


@dataclass(slots=True)
class Account:
    """Holds the unroll counts of one run, and the gaps between its journals."""

    generated: int = 0
    env_steps: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)  # `duplicate` counts copies beside that
    in_flight: int = 0  # no journal says how they ended: lost with a process, or still on the way
    twice: int = 0  # trained more than once: a learner was killed, or slept
    rolled_back: int = 0  # trainings that a return to an older checkpoint undid
    untrue: int = 0  # said to be trained, but no learner's journal says so
    ghosts: int = 0  # they ended, but no sampler's journal says that there were such unrolls
    contradictions: int = 0  # one process said two things of them
    unfounded: int = 0  # acknowledged with an outcome that no broker settled
    too_many: int = 0  # in flight beyond what their sampler can have left open
    window: int = 0  # most that one sampler can have open; 0 = no broker's journal says it
    samplers: list[Sampler] = field(default_factory=list)
    trained_by_stream: list[int] = field(default_factory=list)  # unrolls of each that joined
    journals: Counter[Role] = field(default_factory=Counter)  # how many were read
    damage: list[str] = field(default_factory=list)  # one line each, with file and line

    def unaccounted(self) -> int:
        """Counts the unrolls in any gap."""
        total = sum(n for name, n in self.outcomes.items() if name != "duplicate")
        gaps = self.untrue + self.ghosts + self.contradictions + self.unfounded + self.too_many
        return abs(self.generated - total - self.in_flight) + gaps

    def exact(self) -> bool:
        """Tells whether there is no gap and no damage."""
        return not self.unaccounted() and not self.damage


def read(folder: Path, *, copies: int = 0) -> Account:
    """Returns the account of a run's journals. A killed process's torn last line is left out."""
    account = _Join(folder).account() if folder.is_dir() else Account()
    outcomes = Counter(account.outcomes)
    account.outcomes = {**{name: outcomes[name] for name in OUTCOMES}, "duplicate": copies}
    return account


class _Join:
    """Joins the journals of a folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._result = Account()
        self._names: dict[int, str] = {}  # by incarnation
        self._ended: dict[int, bool] = {}  # by incarnation, when we read what it heard
        self._steps: dict[str, int] = {}  # of the environments, by journal
        self._marks: dict[Stream, Marks] = {}
        # Trained unrolls by sampler's name and stream: one that is started again is the same.
        self._supplied: Counter[tuple[str, int]] = Counter()
        self._ghosts: dict[Stream, Spans] = defaultdict(list)
        read = list(journals.read(folder, *Role))
        for journal in read:
            self._count(journal)
            if journal.role is Role.SAMPLER:
                self._generated(journal, ended=journal.ended)
        spoken = _spoken(read)
        if any(most > self._of(stream).count for stream, most in spoken.items()):
            # What samplers that run have generated since, as far as the others spoke of it. What
            # came later yet is open only because we do not look at the others again.
            for journal in journals.read(folder, Role.SAMPLER):
                self._generated(journal, ended=False, most=spoken)
        for journal in read:
            self._ends(journal)
        self._result.env_steps = sum(self._steps.values())
        self._result.rolled_back = _rolled_back(read)

    def account(self) -> Account:
        result = self._result
        fates = {inc: [0] * (IN_FLIGHT + 1) for inc in self._ended}
        for (inc, number), marks in self._marks.items():
            own = marks.fates()
            fates[inc] = [a + b for a, b in zip(fates[inc], own, strict=True)]
            self._supplied[self._names[inc], number] += own[TRAINED]
            result.twice += marks.twice()
            result.untrue += marks.untrue()
            result.contradictions += marks.contradictions
            if result.journals[Role.BROKER]:
                result.unfounded += marks.unfounded()
        result.trained_by_stream = list(self._supplied.values())
        result.ghosts = sum(map(_distinct, self._ghosts.values()))
        result.samplers = sorted(
            (Sampler(self._names[inc], inc, self._ended[inc], of) for inc, of in fates.items()),
            key=lambda sampler: (sampler.name, sampler.inc),
        )
        for sampler in result.samplers:
            result.generated += sampler.generated
            result.in_flight += sampler.in_flight
            result.too_many += sampler.too_many(result.window)
        for at, name in enumerate(OUTCOMES):
            result.outcomes[name] = sum(sampler.fates[at] for sampler in result.samplers)
        return result

    def _count(self, journal: Journal) -> None:
        self._result.journals[journal.role] += 1
        self._result.damage += journal.damage
        for (unrolls,) in journal.said("W"):
            self._result.window = max(self._result.window, int(unrolls))

    def _generated(
        self, journal: Journal, *, ended: bool, most: Mapping[Stream, int] | None = None
    ) -> None:
        """Notes whose journal it is and what was generated: every seq from 0 on, or a line is
        missing. `most`: the seqs from there on are not looked at."""
        for role, word, *words in journal.said("P"):
            if role == "actor":
                self._names[int(word)] = " ".join(words)
                self._ended.setdefault(int(word), ended)
        for inc, streams in (map(int, words) for words in journal.said("S")):
            if streams > _MOST_STREAMS:
                self._result.damage.append(f"{journal.stem}: {streams:,} streams cannot be")
                continue
            name = self._names.setdefault(inc, journal.stem)
            for number in range(streams):
                self._supplied[name, number] += 0
        for stream, _, spans in journal.spans("g"):
            inc, number = stream
            self._names.setdefault(inc, journal.stem)
            self._ended.setdefault(inc, ended)
            (lo, hi), gap = spans[0], spans[1][0] if len(spans) > 1 else 0
            if hi > _MOST:
                self._result.damage.append(
                    f"{journal.stem}: stream {number} of incarnation {inc} cannot have generated"
                    f" {hi:,} unrolls"
                )
                continue
            if lo or gap:
                hi = 0 if lo else hi
                self._result.damage.append(
                    f"{journal.stem}: stream {number} of incarnation {inc} has no line about"
                    f" what it generated from {hi} to {(lo or gap) - 1}"
                )
            hi = hi if most is None else min(hi, most.get(stream, 0))
            if stream not in self._marks or self._marks[stream].count < hi:
                self._marks[stream] = Marks(hi)
        self._steps[journal.stem] = journal.env_steps()

    def _ends(self, journal: Journal) -> None:
        for stream, outcome, spans in journal.spans("A"):
            self._of(stream).heard(outcome, self._known(stream, spans))
        for stream, _, spans in journal.spans("X"):
            self._of(stream).given_up(self._known(stream, spans))
        for stream, _, spans in journal.spans("t"):
            self._of(stream).trained(self._known(stream, spans))
        for stream, _, spans in journal.spans("R"):
            self._of(stream).refused(self._known(stream, spans))
        for stream, ends in journal.by_stream("B").items():
            known = {outcome: self._known(stream, spans) for outcome, spans in ends.items()}
            self._of(stream).settled(known)

    def _of(self, stream: Stream) -> Marks:
        return self._marks.get(stream) or Marks(0)

    def _known(self, stream: Stream, spans: Spans) -> Spans:
        """Returns the part that was generated; the rest are ghosts."""
        count = self._of(stream).count
        if all(hi <= count for _, hi in spans):
            return spans
        self._ghosts[stream] += [[max(lo, count), hi] for lo, hi in spans if hi > count]
        return [[lo, min(hi, count)] for lo, hi in spans if lo < count]


def _spoken(read: Sequence[Journal]) -> dict[Stream, int]:
    """Returns, by stream, the seq below which others than its sampler speak of unrolls."""
    most: dict[Stream, int] = {}
    for journal in read:
        for letter in "tRB":
            for stream, _, spans in journal.spans(letter):
                most[stream] = max(most.get(stream, 0), *(hi for _, hi in spans))
    return most


def _distinct(spans: Spans) -> int:
    """Counts the numbers that lie in at least one span."""
    total = top = 0
    for lo, hi in sorted(spans):
        total += max(0, hi - max(lo, top))
        top = max(top, hi)
    return total


@dataclass(slots=True)
class _Generation:
    """Groups the ranks that began together."""

    version: int  # from where
    ranks: set[str] = field(default_factory=set)
    journals: list[Journal] = field(default_factory=list)


def _rolled_back(read: Sequence[Journal]) -> int:
    """Counts the trainings above the version at which a later generation of learners began. Ranks
    begin together: one that comes again belongs to the next generation."""
    learners = [journal for journal in read if journal.role is Role.LEARNER]
    began = [(int(v[1]), at, int(v[0])) for at, j in enumerate(learners) for v in j.said("V")]
    generations: list[_Generation] = []
    for _, at, version in sorted(began):
        ranks = {" ".join(words[2:]) for words in learners[at].said("P")}
        if not generations or ranks & generations[-1].ranks:
            generations.append(_Generation(version))
        generations[-1].ranks |= ranks
        generations[-1].journals.append(learners[at])
    total, above = 0, None
    for generation in reversed(generations):
        if above is not None:
            total += sum(journal.trained(above) for journal in generation.journals)
        above = generation.version if above is None else min(above, generation.version)
    return total
