"""An environment that takes time and does nothing else, to measure the machinery around it.

`kind` says how long a step lasts: "tail" is 3 ms, or 100 ms once in a while, and resets at once;
"normal" is spread around 10 ms and resets in 150 ms. Episodes are cut after 200 steps.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

EPISODE = 200
SHORT_S, LONG_S, LONG_SHARE = 0.003, 0.100, 0.03
MEAN_S, DEVIATION_S = 0.010, 0.005
RESET_S = {"tail": 0.0, "normal": 0.150}


class Sleeper(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Spends time in every step. busy: burn the thread's own processor time instead of sleeping.
    step_s: every step takes this many seconds; slow_step_s: in one instance of four, by its first
    seed, this many. reset_s: a reset takes so many. slower: all of it lasts so many times as long.
    crash, stall, die: the probability that a step raises, hangs, or ends the process."""

    def __init__(
        self,
        kind: str = "tail",
        busy: bool = False,
        step_s: float | None = None,
        slow_step_s: float | None = None,
        reset_s: float | None = None,
        slower: float = 1.0,
        crash: float = 0.0,
        stall: float = 0.0,
        die: float = 0.0,
    ) -> None:
        if kind not in RESET_S:
            raise ValueError(f'kind is {kind!r}; set it to "tail" or "normal"')
        self.observation_space = Box(-1, 1, (4,), np.float32)
        self.action_space = Discrete(2)
        self._kind, self._busy, self._step_s = kind, busy, step_s
        self._slow_step_s, self._slower = slow_step_s, slower
        self._reset_s = RESET_S[kind] if reset_s is None else reset_s
        self._crash, self._stall, self._die = crash, stall, die
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None and seed % 4 == 0 and self._slow_step_s is not None:
            self._step_s = self._slow_step_s
        self._steps = 0
        self._spend(self._reset_s)
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        del action
        self._perhaps_fail(self.np_random.random())
        self._spend(self._duration())
        self._steps += 1
        return self._observation(), 1.0, False, self._steps == EPISODE, {}

    def _perhaps_fail(self, dice: float) -> None:
        """Fails by one random number for all failures, so that durations do not depend on them."""
        if dice < self._crash:
            raise RuntimeError("crashed as asked")
        if dice < self._crash + self._stall:
            while True:
                time.sleep(3600)
        if dice < self._crash + self._stall + self._die:
            os._exit(13)

    def _duration(self) -> float:
        if self._kind == "tail":
            drawn = LONG_S if self.np_random.random() < LONG_SHARE else SHORT_S
        else:
            drawn = max(0.0, float(self.np_random.normal(MEAN_S, DEVIATION_S)))
        return drawn if self._step_s is None else self._step_s

    def _spend(self, seconds: float) -> None:
        seconds *= self._slower
        if not self._busy:
            time.sleep(seconds)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def _observation(self) -> NDArray[np.float32]:
        return self.np_random.random(4, np.float32) * 2 - 1


def mean_step_s(kwargs: Mapping[str, Any]) -> float:
    """Returns the mean seconds of one agent step, with its share of a reset."""
    kind = kwargs.get("kind", "tail")
    step_s = kwargs.get("step_s")
    if step_s is None:
        step_s = _tail_s() if kind == "tail" else _normal_s()
    seconds = float(step_s) + float(kwargs.get("reset_s", RESET_S[kind])) / EPISODE
    return seconds * float(kwargs.get("slower", 1.0))


def drawn_steps_s(
    kwargs: Mapping[str, Any], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draws the seconds of steps of kind "tail"."""
    drawn = np.where(rng.random(shape) < LONG_SHARE, LONG_S, SHORT_S)
    return drawn * float(kwargs.get("slower", 1.0))


def _tail_s() -> float:
    return (1 - LONG_SHARE) * SHORT_S + LONG_SHARE * LONG_S


def _normal_s() -> float:
    """Returns the mean of max(0, X)."""
    z = MEAN_S / DEVIATION_S
    below = (1 + math.erf(z / math.sqrt(2))) / 2
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return MEAN_S * below + DEVIATION_S * density


class Team:
    """Lets several agents act at the same time in a Sleeper, which takes as long for all as for
    one. `kwargs`: the Sleeper's."""

    def __init__(self, agents: int = 4, **kwargs: Any) -> None:
        self._inner = Sleeper(**kwargs)
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        del agent
        return self._inner.observation_space

    def action_space(self, agent: str) -> Any:
        del agent
        return self._inner.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del options
        self.agents = [*self.possible_agents]
        return dict.fromkeys(self.agents, self._inner.reset(seed=seed)[0]), {}

    def step(self, actions: Mapping[str, np.int64]) -> tuple[dict[str, Any], ...]:
        """Tells all alike."""
        seen, *told, _ = self._inner.step(next(iter(actions.values())))
        if any(told[1:]):
            self.agents = []
        alike = [dict.fromkeys(actions, value) for value in (seen, float(told[0]), *told[1:])]
        return (*alike, {})

    def close(self) -> None:
        self._inner.close()
