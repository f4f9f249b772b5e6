"""Fast Python environments, one after another on the event loop."""

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.envs import EnvError, make_env, spaces_of
from actors.stepping.stepper import Frame, check_same_spaces, check_shape
from learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces


class Inline:
    """`groups` x `envs` environments; a group's step runs when it is sent."""

    def __init__(self, config: EnvConfig, *, groups: int, envs: int, seed: int) -> None:
        self._name = config.id
        self._envs = [make_env(config) for _ in range(groups * envs)]
        self.spaces: Spaces = spaces_of(self._envs[0], config.id)
        for env in self._envs[1:]:
            check_same_spaces(self.spaces, spaces_of(env, config.id), config.id)
        self.frame = Frame.empty(self.spaces, groups=groups, envs=envs)
        self._seed = seed
        self._over = [False] * len(self._envs)  # the episode ended: the next step only resets
        self._sent: list[int] = []  # groups stepped since the last ready()

    def reset(self) -> None:
        """Every environment begins, each with a seed of its own."""
        for index in range(len(self._envs)):
            self._reset(index, seed=self._seed + index)
        self._sent = list(range(self.frame.groups))

    def send(self, group: int, actions: NDArray[np.int64]) -> None:
        """One step of a group."""
        frame, over, envs = self.frame, self._over, self._envs
        rows, rewards, flags = frame.rows, frame.reward, frame.flags
        index = group * frame.envs
        try:
            for action in actions.tolist():
                if over[index]:
                    self._reset(index)
                    rewards[index], flags[index], over[index] = 0.0, DEAD, False
                else:
                    rows[index], rewards[index], ended, cut, _ = envs[index].step(action)
                    if ended or cut:
                        flags[index] = (TERMINATED if ended else 0) | (TRUNCATED if cut else 0)
                        over[index] = True
                    else:
                        flags[index] = 0
                index += 1
        except EnvError:
            raise
        except Exception as error:
            raise self._failed("step", index, error) from error
        self._sent.append(group)

    async def ready(self) -> list[int]:
        """Groups whose observations are there: all that were sent."""
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _reset(self, index: int, seed: int | None = None) -> None:
        """An episode begins, and its first observation is written."""
        try:
            observation = self._envs[index].reset(seed=seed)[0]
            # Once an episode, not once a step: numpy spreads a scalar or a short row over a whole
            # one without a word.
            check_shape(np.shape(observation), self.frame.rows[index].shape)
            self.frame.rows[index] = observation
        except Exception as error:
            raise self._failed("reset", index, error) from error

    def _failed(self, where: str, index: int, error: Exception) -> EnvError:
        return EnvError(
            f"{self._name} failed in {where} (environment {index}, seed {self._seed + index}):"
            f" {type(error).__name__}: {error}"
        )
