"""Environments with one fault each; a run names them as broken_envs:NAME."""
# ruff: noqa: ARG002  # the signatures are gymnasium's

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Text


class Steady(gymnasium.Env[Any, Any]):
    """Nothing is wrong with it: two numbers, two actions, an episode of 20 steps."""

    size = 2

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (self.size,), np.float32)
        self.action_space = Discrete(2)
        self.t = 0

    def observation(self) -> Any:
        return np.full(self.size, 0.1, np.float32)

    def reward(self) -> float:
        return 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.t = 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation(), self.reward(), self.t >= 20, False, {}


def steady() -> Any:
    return Steady()


class RaisesInReset(Steady):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("the simulator\nhas no licence")


class RaisesInStep(Steady):
    def step(self, action: Any) -> Any:
        if self.t == 15:
            raise RuntimeError("the wheel came off")
        return super().step(action)


class NonFiniteReward(Steady):
    def reward(self) -> float:
        return float("nan") if self.t == 10 else 1.0


class NonFiniteObservation(Steady):
    def observation(self) -> Any:
        return np.full(self.size, np.inf if self.t == 10 else 0.1, np.float32)


class OutsideItsSpace(Steady):
    def observation(self) -> Any:
        return np.full(self.size, 5.0, np.float32)


class ChangesItsSpaces(Steady):
    """With the second episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.t:
            self.observation_space = Box(-2.0, 2.0, (self.size,), np.float32)
        return super().reset(seed=seed, options=options)


class Grows(Steady):
    """Every one that is made in a process is wider than the one before."""

    made = 0

    def __init__(self) -> None:
        Grows.made += 1
        self.size = Grows.made
        super().__init__()


class WrongShapeInStep(Steady):
    def observation(self) -> Any:
        return np.full(self.size + (self.t == 15), 0.1, np.float32)


class WrongDtypeInStep(Steady):
    def observation(self) -> Any:
        return np.full(self.size, 0.1, np.complex64 if self.t == 15 else np.float32)


class NonFiniteOnce(Steady):
    """Early in the third episode, whose end lies unrolls of 8 steps away."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def reward(self) -> float:
        return float("nan") if (self.episodes, self.t) == (3, 2) else 1.0


def depends_on_the_machine() -> Any:
    """Other spaces where the variable says so."""
    env = Steady()
    if os.environ.get("WIDER"):
        env.observation_space = Box(-1.0, 1.0, (3,), np.float32)
    return env


def unsupported_observation() -> Any:
    env = Steady()
    env.observation_space = Text(7)
    return env


def unsupported_action() -> Any:
    env = Steady()
    env.action_space = Text(3)
    return env


def no_environment() -> Any:
    return "not an environment"


def fails_to_be_made() -> Any:
    raise FileNotFoundError("no ROM here")
