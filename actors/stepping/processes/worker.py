"""A worker process: steps its groups whenever it is woken, one after another."""

import faulthandler
import os
import random
import signal
import socket
import sys
import time

import numpy as np
from msgspec import msgpack

from headrace.actors import users_code
from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.bookkeeping import traceback_of
from headrace.actors.stepping.group import Envs, Seat, Stopped, Unit
from headrace.actors.stepping.linux import die_with_parent, sharp_sleep
from headrace.actors.stepping.processes.shared_frame import Failed, Shared, Task, Wrong, groups_of
from headrace.actors.stepping.stepper import Failure
from headrace.actors.stepping.vector import Vector

ASK_STACK = signal.SIGUSR2
_SENTENCE = 8000  # characters that the longest one may have
_NAP_S = 0.1  # between looks at whether to stop, while an environment cannot be made


def run(task: Task, worker: int, control: socket.socket, *, host: int, stacks: int) -> None:
    """Runs the whole life of a forked worker."""
    die_with_parent(host)
    # The host asks so where it hangs; answered even in the middle of a call into C.
    faulthandler.register(ASK_STACK, stacks)
    # A group of its own, so that the simulators it started can be ended with it.
    os.setpgid(0, 0)
    sharp_sleep()
    status = 1
    try:
        Worker(task, worker, control).run()
        status = 0
    except Stopped:
        status = 0
    except EnvError as error:
        wrong = Wrong(str(error)[:_SENTENCE], users_code.traceback_of(error))
        control.send(msgpack.encode(wrong))
    except BaseException as error:  # noqa: BLE001 - the process ends here in any case
        sys.stderr.write(traceback_of(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing of the host's, whose copy this process is, may run at its exit.
        os._exit(status)


class Worker:
    """Steps its groups, and writes what they answer into the shared memory."""

    def __init__(self, task: Task, number: int, control: socket.socket) -> None:
        self._number = number
        self._control = control
        self._shared = shared = Shared(
            task.memory, task.spaces, groups=task.groups, envs=task.envs, workers=task.workers
        )
        self._wake, self._news = task.wakes[number], task.news
        self._groups = groups_of(number, groups=task.groups, workers=task.workers)
        kind: type[Unit] = Vector if task.vector else Envs
        self._units = {
            group: kind(
                Seat(
                    task.config,
                    task.spaces,
                    group,
                    task.envs,
                    task.seed,
                    shared.ledger,
                    self._report,
                    self._pause,
                ),
                shared.frame,
            )
            for group in self._groups
        }
        # A fork has its parent's random numbers; environments that use the global ones must not
        # all play the same.
        first = self._groups[0]
        seed = task.seed + first + 1_000_003 * shared.ledger.restarts[first]
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)

    def run(self) -> None:
        shared = self._shared
        shared.alive(self._number)
        while not shared.stopped:
            worked = False
            for group in self._groups:
                if shared.sent[group] != shared.done[group] and not shared.stopped:
                    self._step(group)
                    worked = True
            if not worked:
                os.eventfd_read(self._wake)
        for unit in self._units.values():
            unit.close()

    def _step(self, group: int) -> None:
        shared, unit = self._shared, self._units[group]
        shared.alive(self._number)
        shared.busy[self._number] = group + 1
        if unit.begun:
            unit.step(shared.frame.action[shared.frame.columns(group)])
        elif shared.done[group]:
            unit.revive()
        else:
            unit.begin()
        shared.busy[self._number] = 0
        shared.done[group] = shared.sent[group]
        os.eventfd_write(self._news, 1)

    def _report(self, failure: Failure) -> None:
        self._shared.alive(self._number)  # failing is not hanging
        self._control.send(msgpack.encode(Failed(self._number, failure)))

    def _pause(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._shared.stopped and time.monotonic() < until:
            time.sleep(_NAP_S)
        return not self._shared.stopped
