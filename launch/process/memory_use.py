"""Measures what a tree of processes uses: memory with shared pages counted once, and processor
time."""

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """Holds what a process and all below it use."""

    cpu_s: float  # also of those that have ended
    pss_mb: float  # a page that n processes share counts 1/n in each


class ProcessTree:
    """Holds the peak memory of a process and its descendants, over the calls of `measure`."""

    def __init__(self) -> None:
        self.peak_mb = 0.0  # proportional set size: a page shared by n processes counts 1/n in each
        self.peak_rss_sum_mb = 0.0  # resident set sizes added up, as many tools show it
        self.uses: dict[int, Use] = {}  # at the last look, by this process and its children

    def measure(self, children: Sequence[int]) -> None:
        own = os.getpid()
        looked = {own: [own], **{child: with_descendants(child) for child in children}}
        memory = {root: [_memory_kb(pid) for pid in pids] for root, pids in looked.items()}
        pss = {root: sum(one[0] for one in each) / 1024 for root, each in memory.items()}
        rss = sum(one[1] for each in memory.values() for one in each)
        self.uses = {
            root: Use(sum(_cpu_s(pid, ended=pid != own) for pid in pids), pss[root])
            for root, pids in looked.items()
        }
        self.peak_mb = max(self.peak_mb, sum(pss.values()))
        self.peak_rss_sum_mb = max(self.peak_rss_sum_mb, rss / 1024)

    @staticmethod
    def cpu_s() -> float:
        """Returns the processor seconds of this process and of every child that has ended."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def with_descendants(pid: int) -> list[int]:
    """Returns a process and all of its descendants that still run."""
    found = [pid]
    for parent in found:
        # Any of these may end at any moment, also between two looks of one glob.
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += map(int, thread.read_text().split())
    return found


def pss_bytes(roots: Sequence[int]) -> int:
    """Returns the memory of these processes and all below them; a page shared by n processes counts
    1/n in each."""
    return 1024 * sum(_memory_kb(pid)[0] for root in roots for pid in with_descendants(root))


def _cpu_s(pid: int, *, ended: bool) -> float:
    """Returns the processor seconds of a process, and of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # ended meanwhile, or no Linux
    return sum(map(int, fields[11 : 15 if ended else 13])) / os.sysconf("SC_CLK_TCK")


def _memory_kb(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0  # ended meanwhile, or no Linux
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(found.get(k, "0 kB").split()[0]) for k in ("Pss", "Rss"))  # type: ignore[return-value]
