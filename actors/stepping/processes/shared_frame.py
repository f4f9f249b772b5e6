"""The shared memory of a sampler and its workers, and the messages between them."""

import mmap
import os
import time

import numpy as np
from msgspec import Struct, msgpack
from numpy.typing import NDArray

from headrace.actors.stepping.bookkeeping import Bookkeeping
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Frame

MESSAGE_BYTES = 1 << 16  # the longest that travels


class Task(Struct, frozen=True):
    """Tells a host all it has to know, before anything else."""

    made: EnvsSpec
    workers: int
    memory: int  # descriptor of the shared memory
    news: int  # eventfd: a worker has something for the sampler
    wakes: tuple[int, ...]  # eventfds: the sampler has something for that worker
    pythonpath: str | None  # as it was before the sampler gave its own


class Fork(Struct, frozen=True, tag=True):
    """Tells the host to start these workers."""

    workers: tuple[int, ...]


class Kill(Struct, frozen=True, tag=True):
    """Tells the host that this worker hangs: find out where, and kill it."""

    worker: int


class Stop(Struct, frozen=True, tag=True):
    """Tells the host that the workers have been told to end: reap them."""


class Died(Struct, frozen=True, tag=True):
    """Reports, from the host, a worker's end. A negative status is the signal that killed it."""

    worker: int
    pid: int
    status: int
    stack: str  # where it was when it was killed for hanging


class Failed(Struct, frozen=True, tag=True):
    """Reports, from a worker, an environment that it has restarted, or tries to restart."""

    failure: EnvFailure


class NeverWorked(Struct, frozen=True, tag=True):
    """Reports, from a worker, that what it was told to make never worked."""

    sentence: str
    traceback: str  # in the user's code; "" = none had a part in it


orders = msgpack.Decoder(Fork | Kill | Stop)
reports = msgpack.Decoder(Died | Failed | NeverWorked)


class SharedFrame:
    """Maps the shared memory into one process: the frame and the counters."""

    def __init__(self, fd: int, made: EnvsSpec, *, workers: int) -> None:
        spaces, groups, envs = made.spaces, made.groups, made.envs
        frame_bytes = Frame.nbytes(spaces, groups=groups, envs=envs)
        apart = groups // made.together
        counters = 1 + 3 * apart + 2 * workers + Bookkeeping.size(groups, envs)
        os.ftruncate(fd, frame_bytes + 8 * counters)
        memory = memoryview(mmap.mmap(fd, frame_bytes + 8 * counters))
        self.frame = Frame.over(memory, spaces, groups=groups, envs=envs)
        numbers = memory[frame_bytes:].cast("q")
        at = 1 + 3 * apart
        self._stop = numbers[:1]
        # By group, or by environment where each has several groups: how many steps it was sent, how
        # many of them are done, and which of its groups is ready then.
        self.sent = numbers[1 : 1 + apart]
        self.done = numbers[1 + apart : 1 + 2 * apart]
        self.turn = numbers[1 + 2 * apart : at]
        self.busy = numbers[at : at + workers]  # by worker: the group it is at, counted from 1
        self.beat = numbers[at + workers : at + 2 * workers]  # by worker: `alive` when; 0 = not yet
        self.books = Bookkeeping(numbers[at + 2 * workers :], groups=groups, envs=envs)
        # The same memory as `done`, to be compared as a whole.
        self.done_array: NDArray[np.int64] = np.frombuffer(self.done, np.int64)
        self.turn_array: NDArray[np.int64] = np.frombuffer(self.turn, np.int64)

    @property
    def stopped(self) -> bool:
        return bool(self._stop[0])

    def stop(self) -> None:
        self._stop[0] = 1

    def alive(self, worker: int) -> None:
        """Notes that the worker works on something new: what was before did not hang."""
        self.beat[worker] = time.monotonic_ns()

    def groups_of(self, worker: int) -> range:
        """Returns the worker's groups: they are dealt like cards."""
        return range(worker, len(self.sent), len(self.busy))

    def done_by(self, worker: int) -> int:
        """Counts the steps that the worker has done."""
        return sum(self.done[group] for group in self.groups_of(worker))

    def waits_for(self, worker: int) -> bool:
        """Says whether a group of the worker's was sent and is not done."""
        return any(self.sent[group] != self.done[group] for group in self.groups_of(worker))
