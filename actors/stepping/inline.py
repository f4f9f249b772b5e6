"""Fast Python environments, one after another on the event loop."""

from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.envs import EnvError, make_env, spaces_of
from actors.stepping.stepper import Frame, check_same_spaces
from learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces


class Inline:
    """`groups` x `envs` environments; a group's step runs when it is sent."""

    def __init__(self, config: EnvConfig, *, groups: int, envs: int, seed: int) -> None:
        self.spaces: Spaces
        self._name = config.id
        self._envs = [make_env(config) for _ in range(groups * envs)]
        self.spaces = spaces_of(self._envs[0], config.id)
        for env in self._envs[1:]:
            check_same_spaces(self.spaces, spaces_of(env, config.id), config.id)
        self.frame = Frame.empty(self.spaces, groups=groups, envs=envs)
        self._seed = seed
        self._over = [False] * len(self._envs)  # the episode ended: the next step only resets
        self._sent: list[int] = []  # groups stepped since the last ready()

    def reset(self) -> None:
        """Every environment begins, each with a seed of its own."""
        for index, env in enumerate(self._envs):
            self._write(index, self._reset(index, env, seed=self._seed + index))
        self._sent = list(range(self.frame.groups))

    def send(self, group: int, actions: NDArray[np.int64]) -> None:
        """One step of a group."""
        frame, over, envs = self.frame, self._over, self._envs
        rows, rewards, flags = frame.rows, frame.reward, frame.flags
        index = group * frame.envs
        zero: SupportsFloat = 0.0
        try:
            for action in actions.tolist():
                if over[index]:
                    observation, reward, bits = self._reset(index, envs[index]), zero, DEAD
                    over[index] = False
                else:
                    observation, reward, ended, cut, _ = envs[index].step(action)
                    bits = (TERMINATED if ended else 0) | (TRUNCATED if cut else 0)
                    if bits:
                        over[index] = True
                rows[index] = observation
                rewards[index] = reward
                flags[index] = bits
                index += 1
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(
                f"{self._name} failed in step (environment {index}, seed {self._seed + index}):"
                f" {type(error).__name__}: {error}"
            ) from error
        self._sent.append(group)

    async def ready(self) -> list[int]:
        """Groups whose observations are there: all that were sent."""
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _reset(self, index: int, env: Any, seed: int | None = None) -> Any:
        try:
            return env.reset(seed=seed)[0]
        except Exception as error:
            raise EnvError(
                f"{self._name} failed in reset (environment {index}, seed {self._seed + index}):"
                f" {type(error).__name__}: {error}"
            ) from error

    def _write(self, index: int, observation: Any) -> None:
        try:
            self.frame.rows[index] = observation
        except (ValueError, TypeError) as error:
            raise EnvError(
                f"{self._name} returned an observation of shape {np.shape(observation)}, but its"
                f" space says {list(self.spaces.observation[0].shape)}"
            ) from error
