"""The worker process: steps its groups one after another whenever it is woken."""

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
from headrace.actors.stepping.groups.group import GroupSpec, StepperClosed
from headrace.actors.stepping.groups.kinds import group_kind
from headrace.actors.stepping.linux import die_with_parent, minimise_timer_slack
from headrace.actors.stepping.processes.shared_frame import Failed, NeverWorked, SharedFrame, Task
from headrace.actors.stepping.stepper import EnvFailure

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
    minimise_timer_slack()
    status = 1
    try:
        Worker(task, worker, control).run()
        status = 0
    except StepperClosed:
        status = 0
    except EnvError as error:
        wrong = NeverWorked(str(error)[:_SENTENCE], users_code.traceback_of(error))
        control.send(msgpack.encode(wrong))
    except BaseException as error:  # noqa: BLE001 - the process ends here in any case
        sys.stderr.write(users_code.full_traceback(error))
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
        self._shared = shared = SharedFrame(task.memory, task.made, workers=task.workers)
        self._wake, self._news = task.wakes[number], task.news
        groups = shared.groups_of(number)
        kind = group_kind(task.made)
        self._together = together = task.made.together
        self._groups = {
            group: kind(
                GroupSpec(task.made, group * together, shared.books, self._report, self._pause),
                shared.frame,
            )
            for group in groups
        }
        # A fork has its parent's random numbers; environments that use the global ones must not
        # all play the same, nor one as it did before its process died: that counts as a restart
        # only once it is made again.
        first = groups[0] * together
        lives = shared.books.restarts[first] + bool(shared.done[groups[0]])
        seed = task.made.seed + first + 1_000_003 * lives
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)

    def run(self) -> None:
        shared = self._shared
        shared.alive(self._number)
        while not shared.stopped:
            worked = False
            for number in self._groups:
                if shared.sent[number] != shared.done[number] and not shared.stopped:
                    self._step(number)
                    worked = True
            if not worked:
                os.eventfd_read(self._wake)
        for group in self._groups.values():
            group.close()

    def _step(self, number: int) -> None:
        shared, group = self._shared, self._groups[number]
        shared.alive(self._number)
        shared.busy[self._number] = number + 1
        if group.begun:
            sent = self._together * number + shared.turn[number]
            group.step(shared.frame.action[shared.frame.columns(sent)])
        elif shared.done[number]:
            group.rebuild()
        else:
            group.begin()
        shared.busy[self._number] = 0
        shared.turn[number] = group.ready - self._together * number
        shared.done[number] = shared.sent[number]
        os.eventfd_write(self._news, 1)

    def _report(self, failure: EnvFailure) -> None:
        self._shared.alive(self._number)  # failing is not hanging
        self._control.send(msgpack.encode(Failed(failure)))

    def _pause(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._shared.stopped and time.monotonic() < until:
            time.sleep(_NAP_S)
        return not self._shared.stopped
