"""Steps each group in a thread: for simulators that wait, or compute without Python's lock."""

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import nullcontext, suppress
from queue import SimpleQueue

from headrace.actors.action_converter import Rows
from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.bookkeeping import Bookkeeping
from headrace.actors.stepping.groups.group import GroupSpec, StepperClosed
from headrace.actors.stepping.groups.kinds import group_kind
from headrace.actors.stepping.linux import minimise_timer_slack
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Frame, ThreadReply

# close() waits this long for all threads together; one inside a long step is left behind.
_CLOSE_S = 1.0
Order = Rows | None  # actions; None = end


class _GroupRunner:
    """Runs a group in its thread. A thread that has hung is given up, and another takes the
    group."""

    def __init__(self, stepper: "ThreadStepper", number: int, *, follows: bool) -> None:
        first = number * stepper.made.together
        spec = GroupSpec(stepper.made, first, stepper.books, self._report, self._pause)
        self.number = number
        self.group = group_kind(stepper.made)(spec, stepper.frame)
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self.since = time.monotonic()  # when its step began, or it last reported; 0 = idle
        self.error: BaseException | None = None  # it ended with this
        self.follows = follows  # another one, which had begun
        self._stepper = stepper
        self._end = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"env-{number}", daemon=True)

    def end(self) -> None:
        """Ends the thread after the step it is at."""
        self._end.set()
        self.orders.put(None)

    def _run(self) -> None:
        minimise_timer_slack()
        group = self.group
        try:
            if self.follows:
                group.rebuild()
            else:
                group.begin()
            while (actions := self._next()) is not None and not self._end.is_set():
                group.step(actions)
        except StepperClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - the event loop raises it
            self.error = error
            self.since = 0.0
            self._stepper.tell(self)
        group.close()

    def _next(self) -> Order:
        """Returns the next order; waits for it."""
        actions = self._stepper.next_for(self)
        return self.orders.get() if actions is None else actions

    def _report(self, failure: EnvFailure) -> None:
        if self._end.is_set():  # no restart is wanted any more
            raise StepperClosed
        self.since = time.monotonic()  # failing is not hanging
        self._stepper.tell(self, failure)

    def _pause(self, seconds: float) -> bool:
        return not self._end.wait(seconds)


class ThreadStepper:
    """Steps each group in its thread; results come by a queue, with one wake-up for many."""

    def __init__(self, made: EnvsSpec, *, timeout_s: float = 60.0) -> None:
        self.made, self.spaces = made, made.spaces
        self.frame = Frame.empty(made.spaces, groups=made.groups, envs=made.envs)
        self.beside = made.groups // made.together
        self.books = Bookkeeping.unshared(groups=made.groups, envs=made.envs)
        self._timeout_s = timeout_s
        self._told: deque[tuple[_GroupRunner, EnvFailure | None]] = deque()  # by the threads
        self._ringing = False  # the loop has been woken and has not looked yet
        self._ready: list[int] = []
        self._failures: list[EnvFailure] = []
        self._error: BaseException | None = None  # a thread's end, for ready() to raise
        self._runners: list[_GroupRunner] = []  # of each group; of all that are stepped together
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()  # the caller's, from start() on
        self._reply: ThreadReply | None = None  # the caller's, from start() on
        self._tick: asyncio.TimerHandle | None = None
        self._scratch: Frame | None = None  # what threads that were given up write into

    def start(self, news: asyncio.Event, reply: ThreadReply | None = None) -> None:
        self._news, self._loop, self._reply = news, asyncio.get_running_loop(), reply
        self._runners = [_GroupRunner(self, number, follows=False) for number in range(self.beside)]
        for runner in self._runners:
            self._launch(runner)
        self._watch()

    def send(self, group: int, actions: Rows) -> None:
        runner = self._runners[group // self.made.together]
        kept = self.frame.action[self.frame.columns(group)]
        kept[:] = actions
        runner.since = time.monotonic()
        runner.orders.put(kept)

    def ready(self) -> list[int]:
        self._look()
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, []
        return ready

    def failures(self) -> list[EnvFailure]:
        self._look()
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        for runner in self._runners:
            runner.end()
        until = time.monotonic() + _CLOSE_S
        for runner in self._runners:
            if runner.thread.ident is not None:
                runner.thread.join(max(0.0, until - time.monotonic()))

    def next_for(self, runner: _GroupRunner) -> Order:
        """Returns actions for a thread whose step is done; None = an order will be queued."""
        runner.since, reply = 0.0, self._reply
        if reply is not None:
            with reply.lock:
                # One that was given up finds another in its place, and must not touch its unroll.
                if self._runners[runner.number] is not runner:
                    return None
                actions = reply.actions(runner.group.ready)
                if actions is not None:
                    runner.since = time.monotonic()
                    return actions
        self.tell(runner)
        return None

    def tell(self, runner: _GroupRunner, failure: EnvFailure | None = None) -> None:
        """Queues for the event loop that a step is done, or that an environment was restarted."""
        self._told.append((runner, failure))
        # Appended first, looked at second; _look() does it the other way round. So whatever is
        # appended while the bell rings is seen by the look that the bell brings about.
        if not self._ringing:
            self._ringing = True
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop is closed: there is no reader
                self._loop.call_soon_threadsafe(self._rung)

    def _rung(self) -> None:
        if self._told:  # and not named by ready() meanwhile
            self._news.set()

    def _look(self) -> None:
        self._ringing = False
        while self._told:
            runner, failure = self._told.popleft()
            if self._runners[runner.number] is not runner:
                continue  # it was given up
            if failure is not None:
                self._failures.append(failure)
            elif runner.error is not None:
                self._error = runner.error
            else:
                self._ready.append(runner.group.ready)

    def _watch(self) -> None:
        """Checks periodically for threads that have hung."""
        now = time.monotonic()
        for runner in self._runners:
            since = runner.since
            if since and now - since > self._timeout_s:
                self._give_up(runner, now - since)
        assert self._loop is not None
        self._tick = self._loop.call_later(min(1.0, self._timeout_s / 4), self._watch)

    def _give_up(self, runner: _GroupRunner, seconds: float) -> None:
        stack = sys._current_frames().get(runner.thread.ident or 0)
        where = "".join(traceback.format_stack(stack)[-20:]) if stack is not None else ""
        text = f"no answer for {seconds:.1f} s\nIts thread was at\n{where}"
        first = runner.number * self.made.together
        self._failures.append(self.books.failure_of_group(first, "time-out", text[:8192]))
        if self._scratch is None:
            frame = self.frame
            self._scratch = Frame.empty(self.spaces, groups=frame.groups, envs=frame.envs)
        with self._reply.lock if self._reply is not None else nullcontext():
            # It may wake up any moment, and must not ask for actions with what it did not write.
            runner.group.abandon(self._scratch)
            runner.end()
            follower = _GroupRunner(
                self, runner.number, follows=runner.follows or runner.group.begun
            )
            self._runners[runner.number] = follower
        self._launch(follower)
        self._news.set()

    def _launch(self, runner: _GroupRunner) -> None:
        try:
            runner.thread.start()
        except RuntimeError as error:
            count = threading.active_count()
            self.close()
            raise EnvError(
                f"{self.beside} groups need a thread each, and after {count} the system gave"
                " no more; raise its limit (ulimit -u) or lower actor.groups"
            ) from error
