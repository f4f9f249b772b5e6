"""How many trainings the learners' journals of a run hold, while it goes on."""

from pathlib import Path

from headrace.broker.journal import journal_files
from headrace.broker.journal.reader import Role, role

_TRIES = 20  # a journal is folded rarely: once in a great many unrolls


def trained(folder: Path) -> int:
    """Quick: callers poll it."""
    if not folder.is_dir():
        return 0
    for _ in range(_TRIES):
        try:
            return sum(
                _trained(part.path.read_bytes(), folded=part.folded)
                for files in journal_files.journals(folder).values()
                if role(files.stem) is Role.LEARNER
                for part in files.segments
            )
        except FileNotFoundError:
            continue
    raise AssertionError(f"{folder}: its journals are folded faster than they can be read")


def _trained(lines: bytes, *, folded: bool) -> int:
    if not folded:
        return lines.count(b"\nT ") + lines.startswith(b"T ")
    runs = (line.split() for line in lines.splitlines() if line.startswith(b"v "))
    return sum(int(each) * (int(hi) - int(lo)) for _, lo, hi, each in runs)
