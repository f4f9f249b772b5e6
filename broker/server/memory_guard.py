"""Compares the broker's memory with all that it knows of.

ZeroMQ bounds messages and frames, but not the frames of one message: those of a message that never
ends are kept as they come, uncounted by any high-water mark and out of our sight. Subscriptions to
ever new topics are kept too. What can be seen is a process larger than all that it holds. It ends
before it takes the machine's last memory: its supervisor (systemd) starts it again in seconds, and
nothing is lost, because all that a broker holds is at its peers as well.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from headrace.broker.errors import ExpectedError
from headrace.broker.ledger.records import Actor

_MIB: Final = 1 << 20
# Interpreter, metrics, buffers of sockets, the messages of one turn of the loop.
_SLACK: Final = 256 * _MIB
# Of one peer, beside its streams and what is counted of what waits to be sent to it: 55 kB idle,
# up to 184 kB at work (`headrace bench crowd`), most of it ZeroMQ's for two connections.
PEER_BYTES: Final = 256 * 1024
# Of what is remembered of samplers, also of dead ones (measured: 301 and 84 bytes).
_STREAM: Final = 512
_SEQ: Final = 128


class MemoryExceededError(ExpectedError):
    """Says that more is in memory than anything we hold; the text is for the log."""


def resident() -> int:
    """Returns the bytes of this process in memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Gives the kernel back what glibc kept after it was freed, as runtime.py asks it to."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)


def remembered(actors: Mapping[int, Actor]) -> int:
    """Returns the bytes that the records of samplers' streams and seqs take, about."""
    streams = [stream for actor in actors.values() for stream in actor.streams.values()]
    seqs = sum(len(stream.settled) + len(stream.present) for stream in streams)
    return _STREAM * len(streams) + _SEQ * seqs


class MemoryGuard:
    """Ends the broker when it outgrows what it holds. Made when the broker starts."""

    def __init__(
        self,
        *,
        queue_bytes: int,
        resident: Callable[[], int] = resident,
        trim: Callable[[], None] = trim,
    ) -> None:
        self._resident = resident
        self._trim = trim
        # What this process needs before any peer comes, and the unrolls that it may hold: half as
        # much again for the gaps between them.
        self._base = resident() + queue_bytes + queue_bytes // 2

    def limit(self, *, held: int, peers: int) -> int:
        """Returns the bytes that this process may need for `held` bytes and that many peers."""
        return self._base + held + peers * PEER_BYTES + _SLACK

    def check(self, *, held: int, actors: Mapping[int, Actor], peers: int) -> None:
        """Raises MemoryExceededError when this process is larger, even after a trim. Every tick.

        `held`: the weights, and what peers have not taken yet, as they are in memory now; each has
        a bound of its own (blobs.py, unsent_bytes.py).
        """
        if self._resident() <= self.limit(held=held, peers=peers):
            return
        limit = self.limit(held=held + remembered(actors), peers=peers)
        self._trim()
        here = self._resident()
        if here > limit:
            raise MemoryExceededError(
                f"{here // _MIB} MB are in memory and no honest run needs more than"
                f" {limit // _MIB}: a peer sends a message that never ends, or subscribes without"
                " end; start again, nothing is lost; let only peers with keys in"
                " (security.curve), and see SECURITY.md"
            )
