"""Steps a group of environments, and restarts those that fail."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, Rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError, Writer
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_env, spaces_of_any
from headrace.actors.envs.settings import EnvSettings
from headrace.actors.envs.where import Where
from headrace.actors.stepping.bookkeeping import Bookkeeping
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Frame
from headrace.actors.users_code import full_traceback, traceback_of
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces

# Where it cannot wait, a broken environment is made again this often before the sampler ends.
_TRIES = 3
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class StepperClosed(BaseException):
    """Ends a group that waits to make an environment again when the stepper is closing."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Identifies a group: how its environments are made, and where failures are reported."""

    made: EnvsSpec
    group: int
    books: Bookkeeping
    report: Callable[[EnvFailure], None]
    # Waits this many seconds; False = stop trying. None: waiting is not possible here, so that an
    # environment which cannot be made again is an EnvError.
    pause: Callable[[float], bool] | None = None


class Group(ABC):
    """Begins and restarts a group of environments; subclasses step it."""

    parts: int  # how many things are made, closed and mended separately

    def __init__(self, spec: GroupSpec, frame: Frame) -> None:
        self.begun = False  # its frame holds a first observation
        self.ready = spec.group  # the group of the frame that shows what the newest step led to
        self._spec = spec
        self._books = spec.books
        self._group = spec.group
        self._columns = frame.columns(spec.group)
        self._first = self._columns.start  # column of the first environment
        # Read again after every call into an environment: a group that hung and was given up gets
        # another frame, so that it cannot write into the live one when it wakes up.
        self.frame = frame

    def begin(self) -> None:
        """Makes and resets everything. What fails here never worked: an EnvError."""
        began = time.perf_counter()
        for part in range(self.parts):
            where = "make"
            try:
                self._make(part)
                where = "reset"
                self._reset(part, self._next_seed(part))
            except (EnvError, KeyboardInterrupt, StepperClosed):
                raise
            except BaseException as error:
                raise self._fatal(part, where, error) from error
        self._show(0, began)

    def rebuild(self) -> None:
        """Takes the place of a group that was given up or died: one step, in which everything is
        made again."""
        began = time.perf_counter()
        for part in range(self.parts):
            self._restart(part)
        self._show(DEAD, began)

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> None:
        """Steps the group once. What fails is made again within the step."""

    def abandon(self, scratch: Frame) -> None:
        """Diverts the writes of a group that hangs and has been replaced: should it wake up, what
        it writes must not matter."""
        self.frame = scratch
        self._books = Bookkeeping.unshared(groups=scratch.groups, envs=scratch.envs)

    def close(self) -> None:
        for part in range(self.parts):
            self._drop(part)

    @abstractmethod
    def _make(self, part: int) -> None: ...

    @abstractmethod
    def _reset(self, part: int, seed: int | None) -> None:
        """Begins an episode, and writes its first observation."""

    @abstractmethod
    def _drop(self, part: int) -> None:
        """Closes the part, and ignores errors of that."""

    def _mend(self, part: int, where: str, error: BaseException) -> None:
        """Reports the failure of a part, and makes it again."""
        if isinstance(error, KeyboardInterrupt | StepperClosed):
            raise error
        self._report(part, where, error)
        self._restart(part)

    def _restart(self, part: int) -> None:
        spec, books = self._spec, self._books
        books.at[spec.group] = part
        tried, pause = 0, _PAUSE_S
        while True:
            self._drop(part)
            books.restarts[spec.group] += 1
            seed, where = self._next_seed(part), "make"
            try:
                self._make(part)
                where = "reset"
                self._reset(part, seed)
            except (KeyboardInterrupt, StepperClosed):
                raise
            except BaseException as error:  # noqa: BLE001 - reported in full, each time
                self._report(part, where, error)
                tried += 1
                if spec.pause is None and tried == _TRIES:
                    raise self._fatal(part, where, error) from None
            else:
                books.missed[self._first + part] = books.steps[spec.group]
                return
            if spec.pause is not None:
                if not spec.pause(pause):
                    raise StepperClosed
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _next_seed(self, part: int) -> int:
        return self._books.next_seed(self._spec.made.seed, self._first + part)

    def _where(self, part: int) -> Where:
        made, column = self._spec.made, self._first + part
        return Where(made.sampler, column, made.seed + column, self._group // made.together)

    def _report(self, part: int, where: str, error: BaseException) -> None:
        text = traceback_of(error) or full_traceback(error)
        self._spec.report(self._books.failure(self._first + part, where, text))

    def _fatal(self, part: int, where: str, error: BaseException) -> EnvError:
        if isinstance(error, EnvError):
            return error
        column = self._first + part
        return EnvError(
            f"{self._spec.made.config.id} failed in {where} (environment {column}, seed"
            f" {self._books.seed[column]}): {type(error).__name__}: {error}"
        )

    def _show(self, flags: int, began: float) -> None:
        frame = self.frame
        frame.reward[self._columns] = 0.0
        frame.flags[self._columns] = flags
        if frame.metrics is not None:
            frame.metrics[self._columns] = np.nan
        frame.spent[self._group] += time.perf_counter() - began
        self.begun = True


def check_spaces(config: EnvConfig, expected: Spaces, env: Any) -> None:
    """Raises EnvError unless the environment has the spaces of the run's first one."""
    found = spaces_of_any(env, config)
    if found != expected:
        raise EnvError(f"{config.id} changes its spaces: first {expected}, then {found}")


class EnvGroup(Group):
    """Steps Python environments one after another; each is restarted alone."""

    def __init__(self, spec: GroupSpec, frame: Frame) -> None:
        super().__init__(spec, frame)
        envs, spaces = spec.made.envs, spec.made.spaces
        self.parts = envs
        self._envs: list[Any] = [None] * envs
        self._spaces: list[tuple[Any, Any]] = [(None, None)] * envs  # it had when made
        self._over = [False] * envs  # the episode ended: the next step only resets
        self._writer: Writer | None = None
        # What most observations are, one array of numbers: written in step(), without a call.
        leaf = spaces.observation[0]
        plain = len(spaces.observation) == 1 and not leaf.categories
        self._dtype, self._shape = np.dtype(leaf.dtype) if plain else None, leaf.shape
        self._actions = ActionConverter(spaces.action)
        self._info = InfoMetrics(spaces.metrics)
        self._settings = EnvSettings(spec.made.config)

    @property
    def frame(self) -> Frame:
        return self._frame

    @frame.setter
    def frame(self, frame: Frame) -> None:
        leaf = self._spec.made.spaces.observation[0]
        self._frame = frame
        # Our part of the arrays, looked up in step() after every call into an environment.
        self._rows = frame.obs[leaf.name][self._columns]
        self._reward = frame.reward[self._columns]
        self._flags = frame.flags[self._columns]
        self._metrics = np.empty((len(self._flags), 0))
        if frame.metrics is not None:
            self._metrics = frame.metrics[self._columns]

    def step(self, actions: Rows) -> None:
        began = time.perf_counter()
        envs, over, group, at = self._envs, self._over, self._group, self._books.at
        dtype, shape, array, measures = self._dtype, self._shape, np.ndarray, self._info.names
        self._flags[:] = 0
        numbers = range(len(envs))
        given = self._actions.each(actions)
        for index, env, dead, action in zip(numbers, envs, over, given, strict=True):
            at[group] = index
            try:
                if dead:
                    self._reset(index, None)
                    self._dead(index)
                    continue
                observation, reward, ended, cut, info = env.step(action)
                if (
                    type(observation) is array
                    and observation.dtype is dtype
                    and observation.shape == shape
                ):
                    self._rows[index] = observation
                else:
                    self._write(index, observation, ended or cut)
                self._reward[index] = float(reward)
                if measures:
                    self._info.read(info, self._metrics[index])
                if ended or cut:
                    self._flags[index] = (TERMINATED if ended else 0) | (TRUNCATED if cut else 0)
                    over[index] = True
            except BaseException as error:  # noqa: BLE001 - exits and foreign panics too
                self._mend(index, "reset" if dead else "step", error)
                self._dead(index)
        self._books.steps[group] += 1
        self._frame.spent[group] += time.perf_counter() - began

    def _dead(self, index: int) -> None:
        """Marks the step of an environment that has just been reset: the step only did that."""
        self._reward[index], self._flags[index], self._over[index] = 0.0, DEAD, False
        self._metrics[index] = np.nan
        books = self._books
        books.missed[self._first + index] += 1

    def _write(self, index: int, observation: Any, last: bool) -> None:
        assert self._writer is not None
        self._writer.write(self._frame.obs, self._first + index, observation, last=last)

    def _make(self, part: int) -> None:
        made = self._spec.made
        self._envs[part] = env = make_env(made.config, self._where(part))
        check_spaces(made.config, made.spaces, env)
        self._spaces[part] = env.observation_space, env.action_space
        if self._writer is None:
            self._writer = Writer(env.observation_space, made.spaces)

    def _reset(self, part: int, seed: int | None) -> None:
        env, writer = self._envs[part], self._writer
        assert writer is not None
        if self._settings:
            self._settings.put(env, self._frame.settings.tolist())
        observation = env.reset(seed=seed)[0]
        before, now = self._spaces[part], (env.observation_space, env.action_space)
        # Identical ones are equal without a look inside.
        if now != before:
            raise ValueError(f"a reset changed its spaces from {before} to {now}")
        writer.check(observation)
        writer.write(self._frame.obs, self._first + part, observation)

    def _drop(self, part: int) -> None:
        env, self._envs[part] = self._envs[part], None
        if env is not None:
            with contextlib.suppress(Exception, SystemExit):
                env.close()
