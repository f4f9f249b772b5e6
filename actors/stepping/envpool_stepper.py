"""Steps EnvPool: every environment is a group, and those that are done first come back first.

Its recv() hands out whole batches only. When some groups are parked, fewer than a batch may be
under way, and those that are done would wait for the others. So the pool has a batch of spare
environments: they are sent to fill a batch up when nothing else is. They also keep it from being
as large as a batch: EnvPool takes that for stepping in step, where recv() must not come before
send().
"""

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, Rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError, Writer, spaces_of
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_pool
from headrace.actors.stepping.stepper import EnvFailure, Frame, ThreadReply
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces

# A batch that got nothing new for this long is filled up.
_FILL_S = 0.002
_CLOSE_S = 1.0


class EnvPoolStepper:
    """Receives in one thread; the event loop sends all actions of one turn together."""

    def __init__(self, config: EnvConfig, *, groups: int, envs: int, seed: int) -> None:
        if envs != 1:
            raise EnvError(f"{config.id} steps every environment by itself; set unroll.envs = 1")
        batch = config.kwargs.get("batch_size", max(1, groups // 2))
        if not isinstance(batch, int) or not 1 <= batch <= groups:
            raise EnvError(f"env.kwargs: batch_size must be 1 to {groups}, which is actor.groups")
        total = groups + batch
        self._pool = make_pool(config, total, batch, seed)
        self.spaces: Spaces = spaces_of(self._pool, config)
        self.frame = Frame.empty(self.spaces, groups=groups, envs=1)
        self._name, self._batch, self._groups = config.id, batch, groups
        self.beside = groups
        self._writer = Writer(self._pool.single_observation_space, self.spaces)
        self._actions = ActionConverter(self.spaces.action)
        self._info = InfoMetrics(self.spaces.metrics)
        self._over = np.zeros(groups, np.bool_)  # ended: its next step only resets
        self._idle = np.zeros(total, np.bool_)  # not under way, spares included
        self._sent_at = np.zeros(total)
        self._waiting: list[int] = []  # groups sent in this turn of the loop
        self._flushed = 0.0  # when something was sent last
        self._came: deque[NDArray[np.int32]] = deque()  # groups that are ready, by the thread
        self._ringing = False  # the loop has been woken and has not looked yet
        self._error: BaseException | None = None  # of the thread, for ready() to raise
        self._closing = False
        self._thread = threading.Thread(target=self._receive, name="envpool", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()  # the caller's, from start() on
        self._tick: asyncio.TimerHandle | None = None

    def start(self, news: asyncio.Event, _reply: ThreadReply | None = None) -> None:
        self._news, self._loop = news, asyncio.get_running_loop()
        self._sent_at[:] = self._flushed = time.perf_counter()
        self._pool.async_reset()
        self._thread.start()
        self._fill()

    def send(self, group: int, actions: Rows) -> None:
        self.frame.action[group] = actions[0]
        if not self._waiting:
            assert self._loop is not None
            self._loop.call_soon(self._flush)
        self._waiting.append(group)

    def ready(self) -> list[int]:
        if self._error is not None:
            raise EnvError(f"{self._name} failed: {self._error}") from self._error
        self._ringing = False  # before the look: see ThreadStepper.tell
        ready: list[int] = []
        while self._came:
            ready += self._came.popleft().tolist()
        return ready

    def failures(self) -> list[EnvFailure]:
        """Returns nothing: EnvPool restarts no single environment, any error ends the pool."""
        return []

    def close(self) -> None:
        self._closing = True
        if self._tick is not None:
            self._tick.cancel()
        if self._thread.is_alive():
            # A full batch is the only thing that lets recv() return.
            self._send(np.flatnonzero(self._idle)[: self._batch])
            self._thread.join(_CLOSE_S)
        self._pool.close()

    def _flush(self) -> None:
        if self._waiting and not self._closing:
            self._send(np.asarray(self._waiting))
        self._waiting = []

    def _send(self, numbers: NDArray[np.integer]) -> None:
        kept = self.frame.action
        rows = np.zeros((len(numbers), *kept.shape[1:]), kept.dtype)
        real = numbers < self._groups
        rows[real] = kept[numbers[real]]
        self._idle[numbers] = False
        self._sent_at[numbers] = self._flushed = time.perf_counter()
        self._pool.send(self._actions.many(rows), numbers.astype(np.int32))

    def _fill(self) -> None:
        """Fills an incomplete batch that waits for nothing with spares; checks periodically."""
        under_way = ~self._idle
        missing = self._batch - int(under_way.sum())
        if (
            under_way[: self._groups].any()
            and missing > 0
            and time.perf_counter() - self._flushed > _FILL_S
        ):
            spares = np.flatnonzero(self._idle[self._groups :]) + self._groups
            self._send(spares[:missing])
        assert self._loop is not None
        self._tick = self._loop.call_later(_FILL_S, self._fill)

    def _receive(self) -> None:
        begun = np.zeros(len(self._idle), np.bool_)
        try:
            while not self._closing:
                rows, reward, ended, cut, info = self._pool.recv()
                numbers = np.asarray(info["env_id"])
                self._write(numbers, rows, reward, ended, cut, begun)
                if self.frame.metrics is not None:
                    self._write_metrics(numbers, info, self.frame.metrics)
                begun[numbers] = True
                self._idle[numbers] = True
                self._came.append(numbers[numbers < self._groups])
                self._ring()
        except BaseException as error:  # noqa: BLE001 - the event loop raises it
            self._error = error
            self._ring()

    def _write(
        self,
        numbers: NDArray[np.integer],
        rows: object,
        reward: NDArray[np.float32],
        ended: NDArray[np.bool_],
        cut: NDArray[np.bool_],
        begun: NDArray[np.bool_],
    ) -> None:
        """Writes what came back into the frame; the spares, which come last, are cut off."""
        frame, real = self.frame, numbers < self._groups
        if not real.all():
            rows = _only(rows, real)
        numbers = numbers[real]
        last = (ended | cut)[real]
        self._writer.write_batch(frame.obs, numbers, rows, last=last)
        dead = self._over[numbers]
        flags = ended[real] * TERMINATED | cut[real] * TRUNCATED
        flags[dead] = DEAD
        flags[~begun[numbers]] = 0
        frame.flags[numbers] = flags
        frame.reward[numbers] = np.where(flags == DEAD, 0.0, reward[real])
        frame.spent[numbers] += time.perf_counter() - self._sent_at[numbers]
        self._over[numbers] = flags & (TERMINATED | TRUNCATED) != 0

    def _write_metrics(
        self, numbers: NDArray[np.integer], info: dict[str, Any], metrics: NDArray[np.float64]
    ) -> None:
        """Writes the metrics of what came back; a dead step has none."""
        real = numbers < self._groups
        found = np.empty((len(numbers), metrics.shape[1]))
        self._info.read_batch(info, found)
        metrics[numbers[real]] = found[real]
        metrics[numbers[real][self.frame.flags[numbers[real]] == DEAD]] = np.nan

    def _ring(self) -> None:
        if not self._ringing:
            self._ringing = True
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop is closed: there is no reader
                self._loop.call_soon_threadsafe(self._news.set)


def _only(rows: object, real: NDArray[np.bool_]) -> object:
    if isinstance(rows, dict):
        return {name: _only(part, real) for name, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(_only(part, real) for part in rows)
    return np.asarray(rows)[real]
