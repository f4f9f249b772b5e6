"""Reads the journals of a folder, each summed up; also while their processes write them."""

from collections import defaultdict
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from headrace.broker.journal import journal_files
from headrace.broker.journal.compaction import Compaction, Spans
from headrace.broker.journal.journal_files import Files, Segment

Stream = tuple[int, int]  # incarnation, number

_TRIES = 20  # a journal is folded rarely: once in a great many unrolls
_MOST_SAID = 3  # damaged lines of one journal that are reported one by one


class Role(IntEnum):
    """Says whose journal it is, by its name; they are read in this order."""

    SAMPLER = 0
    BROKER = 1
    LEARNER = 2


class Journal:
    """Reads one process's journal."""

    def __init__(self, files: Files) -> None:
        self.stem = files.stem
        self.role = role(files.stem)
        self.damage: list[str] = []  # one line each
        self._fold = Compaction()
        for number in files.missing:
            self.damage.append(f"{files.stem}: segment {number} of this journal is missing")
        if files.short:
            self.damage.append(
                f"{files.stem}: its process could not write any more (a full disk?): this journal"
                " is incomplete, and a gap may be nothing but that"
            )
        for segment in files.segments:
            self._read(segment, last=segment is files.segments[-1])
        self._fold.tidy()

    @property
    def ended(self) -> bool:
        return any(words[0] == "E" for words in self._fold.said)

    def said(self, letter: str) -> Iterator[list[str]]:
        """Yields the words of every line with this letter, without the letter."""
        return (words[1:] for words in self._fold.said if words[0] == letter)

    def spans(self, letter: str) -> Iterator[tuple[Stream, str, Spans]]:
        """Yields (stream, outcome or "", ranges) for this letter."""
        for (kind, inc, number, outcome), spans in self._fold.spans.items():
            if kind == letter:
                yield (int(inc), int(number)), outcome, spans

    def by_stream(self, letter: str) -> dict[Stream, dict[str, Spans]]:
        found: dict[Stream, dict[str, Spans]] = defaultdict(dict)
        for stream, outcome, spans in self.spans(letter):
            found[stream][outcome] = spans
        return found

    def env_steps(self) -> int:
        return sum(self._fold.steps.values())

    def trained(self, above: int = -1) -> int:
        """Counts the trainings by versions above this one."""
        runs = self._fold.versions
        return sum(each * max(0, hi - max(lo, above + 1)) for lo, hi, each in runs)

    def _read(self, segment: Segment, *, last: bool) -> None:
        for number, text, torn in journal_files.lines(segment):
            if not torn:
                self._fold.add(text, first=number)
            elif segment.folded or not last:
                self.damage.append(f"{segment.path.name}, line {number}: it has no end")
        found, self._fold.damage = self._fold.damage, []
        for number, line in found[:_MOST_SAID]:
            self.damage.append(f"{segment.path.name}, line {number} is no line: {line[:60]!r}")
        if len(found) > _MOST_SAID:
            self.damage.append(f"{segment.path.name}: {len(found) - _MOST_SAID} more such lines")


def role(stem: str) -> Role:
    return {"broker": Role.BROKER, "learner": Role.LEARNER}.get(stem.split("-")[0], Role.SAMPLER)


def read(folder: Path, *roles: Role) -> Iterator[Journal]:
    """Yields the journals of these roles one by one: the next is read when it is asked for."""
    stems = [stem for stem in journal_files.journals(folder) if role(stem) in roles]
    for stem in sorted(stems, key=lambda stem: (role(stem), stem)):
        yield _steady(folder, stem)


def _steady(folder: Path, stem: str) -> Journal:
    """Reads a journal, again if its process compacts it between listing the folder and reading."""
    for _ in range(_TRIES):
        files = journal_files.journals(folder)[stem]
        if files.missing:  # listing a folder is not atomic
            continue
        try:
            return Journal(files)
        except FileNotFoundError:
            continue
    return Journal(journal_files.journals(folder)[stem])
