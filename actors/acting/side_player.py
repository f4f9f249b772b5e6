"""Plays some of an environment's agents while a policy is scored."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.action_converter import ActionConverter
from headrace.actors.envs.convert import Writer
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD, Spaces


class SidePlayer:
    """Plays some of the agents, each a group of one in the frame that its network sees."""

    def __init__(self, player: PolicyLike, spaces: Spaces) -> None:
        self.player, self.spaces = player, spaces
        self._actions = ActionConverter(spaces.action)

    def begin(self, columns: int, space: Any) -> None:
        """Makes room for so many agents, with observations of this space."""
        self._writer = Writer(space, self.spaces)
        self.frame = frame = Frame.empty(self.spaces, groups=columns, envs=1)
        self.stacks = FrameStacks(
            self.spaces, frame, memory=self.player.memory, previous=self.player.previous
        )
        self._numbers = {name: rows for name, rows in frame.obs.items() if rows.dtype.kind == "f"}

    def act(self, columns: Sequence[int], *, greedy: bool) -> list[Any]:
        """Returns what these agents do."""
        rows = np.array(columns, np.int64)
        chosen, _, memory = self.player.act(
            self.stacks.snapshot(rows), self.stacks.memory(rows), greedy=greedy
        )
        self.stacks.acted(rows, chosen, memory)
        return self._actions.each(chosen)

    def come(self, column: int, observation: Any) -> None:
        """Takes in an agent that begins to play."""
        self._writer.check(observation)
        self.take(column, observation, last=False)
        self.frame.reward[column], self.frame.flags[column] = 0.0, DEAD
        self.stacks.push(column)

    def take(self, column: int, observation: Any, *, last: bool) -> None:
        """Writes the observation into its rows; raises ValueError if a learner would reject it."""
        self._writer.write(self.frame.obs, column, observation, last=last)
        for name, rows in self._numbers.items():
            if not np.isfinite(rows[column]).all():
                raise ValueError(f"{name}: an observation that is not finite")
