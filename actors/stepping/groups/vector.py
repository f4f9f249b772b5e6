"""Steps a group by one call of the environment's own vector class."""

import contextlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, Rows
from headrace.actors.envs.convert import Writer
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_vector
from headrace.actors.stepping.groups.group import Group, GroupSpec, check_spaces
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED


class VectorGroup(Group):
    """Steps one vector environment with NEXT_STEP autoreset, as the flags say. It fails and is made
    again as a whole: all its columns show a dead step then, and its first column stands for it."""

    parts = 1

    def __init__(self, spec: GroupSpec, frame: Frame) -> None:
        super().__init__(spec, frame)
        self._vector: Any = None
        self._writer: Writer | None = None
        self._actions = ActionConverter(spec.made.spaces.action)
        self._info = InfoMetrics(spec.made.spaces.metrics)
        self._over = np.zeros(spec.made.envs, np.bool_)  # ended at the step before

    def step(self, actions: Rows) -> None:
        began = time.perf_counter()
        columns = self._columns
        assert self._writer is not None
        over = self._over
        try:
            rows, rewards, ended, cut, info = self._vector.step(self._actions.many(actions))
            frame = self.frame
            flags = self._each(ended) * TERMINATED | self._each(cut) * TRUNCATED
            # The step after an end only resets, whatever else it says.
            last = (flags != 0) & ~over
            self._writer.write_batch(frame.obs, columns, rows, last=last)
            flags[over] = DEAD
            frame.reward[columns] = self._each(rewards)
            frame.reward[columns][over] = 0.0
            frame.flags[columns] = flags
            if frame.metrics is not None:
                self._info.read_batch(info, frame.metrics[columns])
                frame.metrics[columns][over] = np.nan
            self._over = flags & (TERMINATED | TRUNCATED) != 0
        except BaseException as error:  # noqa: BLE001 - exits and foreign panics too
            self._mend(0, "step", error)
            frame = self.frame
            frame.reward[columns], frame.flags[columns] = 0.0, DEAD
            if frame.metrics is not None:
                frame.metrics[columns] = np.nan
            self._books.missed[columns.start] += 1
        self._books.steps[self._group] += 1
        frame.spent[self._group] += time.perf_counter() - began

    def _each(self, numbers: Any) -> NDArray[Any]:
        """Returns the numbers as an array; raises ValueError unless there is one for every
        environment: numpy would spread a single one without a warning."""
        array = np.asarray(numbers)
        if array.shape != self._over.shape:
            raise ValueError(f"{array.shape} numbers for {len(self._over)} environments")
        return array

    def _make(self, part: int) -> None:
        made = self._spec.made
        self._vector = make_vector(made.config, made.envs, self._where(part))
        check_spaces(made.config, made.spaces, self._vector)
        if self._writer is None:
            self._writer = Writer(self._vector.single_observation_space, made.spaces)

    def _reset(self, part: int, seed: int | None) -> None:
        del part
        assert self._writer is not None
        rows = self._vector.reset(seed=seed)[0]
        self._over[:] = False
        self._writer.write_batch(self.frame.obs, self._columns, rows)

    def _drop(self, part: int) -> None:
        del part
        vector, self._vector = self._vector, None
        if vector is not None:
            with contextlib.suppress(Exception, SystemExit):
                vector.close()
