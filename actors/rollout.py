"""Steps become unrolls: T+1 observations, T of everything else, time first.

    acted(t) -> the environment steps -> stepped: reward and flags of t, row t+1 -> acted(t+1)

Row T of one unroll is row 0 of the next, so that the learner can value what comes after the last
step.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from broker.wire import MAX_EPISODES
from learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces, unroll_fields


@dataclass(slots=True)
class Finished:
    """One unroll, ready to be sent."""

    buffers: tuple[memoryview, ...]
    versions: tuple[int, int]
    steps: int
    digest: int
    ended: int
    episodes: tuple[tuple[float, int], ...]


class Rollout:
    """One group's unroll under construction, and its running episodes."""

    def __init__(self, spaces: Spaces, *, length: int, envs: int) -> None:
        self.length = length
        self._fields = unroll_fields(spaces, length=length, envs=envs)
        self._returns = np.zeros(envs, np.float64)
        self._lengths = np.zeros(envs, np.int64)
        self._t = length  # steps written; length = none is open
        self.began = False  # an unroll was opened and not finished
        self._acted = False  # the step at t has its action, and waits for its reward
        self._versions = (0, 0)
        self._ended = 0
        self._episodes: deque[tuple[float, int]] = deque(maxlen=MAX_EPISODES)
        self._open_arrays()

    @property
    def full(self) -> bool:
        """Nothing more fits: all steps are written, or none was begun yet."""
        return self._t == self.length

    def open(self) -> None:
        """Begin an unroll; the sampler has credit for it. Its arrays are new: the old ones belong
        to the outbox until they are acknowledged."""
        self._open_arrays()
        self.began = True
        self._t = 0
        self._ended = 0
        self._episodes.clear()

    def acted(
        self,
        rows: NDArray[np.generic],
        actions: NDArray[np.int64],
        logp: NDArray[np.float32],
        version: int,
    ) -> None:
        """The policy chose for these observations."""
        t = self._t
        self._obs[t] = rows
        self._action[t] = actions
        self._logp[t] = logp
        low, high = self._versions if t else (version, version)
        self._versions = (min(low, version), max(high, version))
        self._acted = True

    def stepped(
        self, rows: NDArray[np.generic], reward: NDArray[np.float32], flags: NDArray[np.uint8]
    ) -> None:
        """The environments answered the action before; rows are the observations they gave."""
        if not self._acted:
            return
        t = self._t
        self._reward[t] = reward
        self._flags[t] = flags
        self._acted = False
        self._t = t + 1
        self._count(reward, flags)
        if self._t == self.length:
            self._obs[self.length] = rows

    def finish(self) -> Finished:
        """The full unroll."""
        self.began = False
        buffers = tuple(
            array.data.cast("B")
            for array in (self._obs, self._action, self._logp, self._reward, self._flags)
        )
        digest = xxhash.xxh3_64()
        for buffer in buffers:
            digest.update(buffer)
        live = self._flags.size - int(np.count_nonzero(self._flags & DEAD))
        return Finished(
            buffers, self._versions, live, digest.intdigest(), self._ended, tuple(self._episodes)
        )

    def faults(self) -> str:
        """What must never reach a learner, in words; "" = clean."""
        if not np.isfinite(self._reward).all():
            return "a non-finite reward"
        if self._obs.dtype.kind == "f" and not np.isfinite(self._obs).all():
            return "a non-finite observation"
        return ""

    def _count(self, reward: NDArray[np.float32], flags: NDArray[np.uint8]) -> None:
        self._returns += reward
        self._lengths += 1
        if not flags.any():
            return
        self._lengths[flags == DEAD] = 0  # the step that only resets belongs to no episode
        for column in np.flatnonzero(flags & (TERMINATED | TRUNCATED)):
            self._ended += 1
            self._episodes.append((float(self._returns[column]), int(self._lengths[column])))
            self._returns[column] = 0.0
            self._lengths[column] = 0

    def _open_arrays(self) -> None:
        arrays = [np.empty(field.shape, field.dtype) for field in self._fields]
        self._obs, self._action, self._logp, self._reward, self._flags = arrays
