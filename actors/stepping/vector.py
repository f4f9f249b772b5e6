"""The environment's own vector class: one call steps a whole group."""

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.envs import EnvError, make_vector, spaces_of
from actors.stepping.stepper import Frame, check_same_spaces, check_shape
from learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces


class Vector:
    """One vector environment a group; NEXT_STEP autoreset, as the flags say."""

    def __init__(self, config: EnvConfig, *, groups: int, envs: int, seed: int) -> None:
        self._name = config.id
        self._vectors = [make_vector(config, envs) for _ in range(groups)]
        self.spaces: Spaces = spaces_of(self._vectors[0], config.id)
        for vector in self._vectors[1:]:
            check_same_spaces(self.spaces, spaces_of(vector, config.id), config.id)
        self.frame = Frame.empty(self.spaces, groups=groups, envs=envs)
        self._seed = seed
        self._sent: list[int] = []

    def reset(self) -> None:
        for group, vector in enumerate(self._vectors):
            columns = self.frame.columns(group)
            try:
                rows = vector.reset(seed=self._seed + columns.start)[0]
                check_shape(np.shape(rows), self.frame.rows[columns].shape)
                self.frame.rows[columns] = rows
            except Exception as error:
                raise self._failed("reset", group, error) from error
        self._sent = list(range(self.frame.groups))

    def send(self, group: int, actions: NDArray[np.int64]) -> None:
        frame, columns = self.frame, self.frame.columns(group)
        dead = frame.flags[columns] & (TERMINATED | TRUNCATED) != 0  # ended at the step before
        try:
            rows, rewards, ended, cut, _ = self._vectors[group].step(actions)
            frame.rows[columns] = rows
            frame.reward[columns] = rewards
        except Exception as error:
            raise self._failed("step", group, error) from error
        frame.flags[columns] = np.where(dead, DEAD, ended * TERMINATED | cut * TRUNCATED)
        frame.reward[columns][dead] = 0.0
        self._sent.append(group)

    async def ready(self) -> list[int]:
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        for vector in self._vectors:
            vector.close()

    def _failed(self, where: str, group: int, error: Exception) -> EnvError:
        return EnvError(
            f"{self._name} failed in {where} (group {group},"
            f" seed {self._seed + self.frame.columns(group).start}):"
            f" {type(error).__name__}: {error}"
        )
