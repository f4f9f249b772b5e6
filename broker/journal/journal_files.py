"""The files of one journal. A run of weeks must not fill a disk, and kill -9 at any moment must
leave files that say it all, exactly once.

    actor-7.log       segment 0, as it was written
    actor-7.3.log     segment 3
    actor-7.0-2.log   segments 0 to 2 folded into ranges; where it stands, they count no more
    actor-7.short     the disk was full: the journal ends before its process did

A folded file is written under another name, synced and renamed; only then are its parts removed.
Small folded files are folded again with what follows them.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker import durable
from headrace.broker.journal.compaction import Compaction

log = logging.getLogger(__name__)

LARGE = 8 * 2**20  # bytes: a file as it was written is closed
_FULL = 4 * 2**20  # bytes: a folded file is left alone
# Bytes read at once. They take many times their size while they are parsed, in a thread whose
# memory the process keeps: with 4 MiB every role grew by 25 MB at its first fold.
_CHUNK = 2**16
_NAME = re.compile(r"(.+?)(?:\.(\d+)(?:-(\d+))?)?\.log")


@dataclass(frozen=True, slots=True)
class Segment:
    """Describes one file that counts."""

    path: Path
    first: int
    last: int
    folded: bool


@dataclass(slots=True)
class Files:
    """Lists one journal's files, in order."""

    stem: str
    segments: list[Segment] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # segments that must have been there
    short: bool = False  # the disk was full


def path(folder: Path, stem: str, number: int) -> Path:
    return folder / (f"{stem}.{number}.log" if number else f"{stem}.log")


def ends_early(folder: Path, stem: str) -> None:
    """Notes by an empty file that the journal ends before its process did."""
    with contextlib.suppress(OSError):
        (folder / f"{stem}.short").touch()


def journals(folder: Path) -> dict[str, Files]:
    """Returns every journal of a folder by its stem, without files that a folded one replaces."""
    found: dict[str, list[Segment]] = {}
    short = set()
    for entry in sorted(folder.iterdir()):
        if entry.suffix == ".short":
            short.add(entry.stem)
        elif match := _NAME.fullmatch(entry.name):
            stem, first, last = match[1], int(match[2] or 0), int(match[3] or match[2] or 0)
            found.setdefault(stem, []).append(Segment(entry, first, last, bool(match[3])))
    return {stem: _in_order(stem, parts, stem in short) for stem, parts in found.items()}


def _in_order(stem: str, parts: list[Segment], short: bool) -> Files:
    files = Files(stem, short=short)
    following = 0
    for part in sorted(parts, key=lambda part: (part.first, -part.last, not part.folded)):
        if part.last >= following:
            files.missing += range(following, part.first)
            files.segments.append(part)
            following = part.last + 1
    return files


def lines(segment: Segment) -> Iterator[tuple[int, str, bool]]:
    """Yields piece by piece (number of its first line, whole lines, False), and at last what
    follows the last end of a line, with True, if there is anything."""
    number, rest = 1, b""
    with segment.path.open("rb") as file:
        while piece := file.read(_CHUNK):
            whole, end, tail = (rest + piece).rpartition(b"\n")
            if end:
                yield number, whole.decode(errors="replace"), False
                number += whole.count(b"\n") + 1
            rest = tail
    if rest:
        yield number, rest.decode(errors="replace"), True


def fold(folder: Path, stem: str, before: int) -> None:
    """Folds the closed segments of one's own journal, those before the one being written."""
    try:
        _fold(folder, stem, before)
    except OSError as error:
        log.warning("the journal %s keeps its long form: %s", stem, error)


def _fold(folder: Path, stem: str, before: int) -> None:
    closed = [part for part in journals(folder)[stem].segments if part.last < before]
    parts = [part for part in closed if not part.folded]
    done = [part for part in closed if part.folded]
    if done and (size := done[-1].path.stat().st_size) < _FULL:
        # Not before there is half as much to add, so that a line is folded only a few times.
        if sum(part.path.stat().st_size for part in parts) < size / 2:
            return
        parts.insert(0, done[-1])
    if not parts:
        return
    total = Compaction()
    for part in parts:
        for number, text, torn in lines(part):
            total.add(text, first=number)
            if torn or total.damage:
                log.error("%s is damaged; it is not folded", part.path)
                return
    to = folder / f"{stem}.{parts[0].first}-{parts[-1].last}.log"
    durable.write(to, total.text())
    for part in parts:
        part.path.unlink()
