"""Plays episodes to score a policy, always the same episodes.

Episode i begins with seed + i, whoever plays it: so the scores of two policies compare. Exactly
those episodes count, not the first that end: short ones would be too many.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.action_converter import ActionConverter
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs import envpool
from headrace.actors.envs.atari import whole_games
from headrace.actors.envs.convert import Env, EnvError, Writer, blamed
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_env
from headrace.actors.envs.where import Where
from headrace.actors.stepping.group import check_spaces
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD, Spaces


class Scores(NamedTuple):
    """Holds returns and lengths by episode, in the order of the seeds; and metrics."""

    returns: list[float]
    lengths: list[int]
    # By name in env.metrics: last values of the episodes that gave it, in the order of their ends.
    metrics: Mapping[str, list[float]] = MappingProxyType({})


class StoppedError(Exception):
    """Ends an evaluation that was told to stop; nothing of what was played counts."""


def play(
    policy: PolicyLike,
    env_config: EnvConfig,
    spaces: Spaces,
    how: EvaluateConfig,
    *,
    watch: Callable[[Env], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Scores:
    """Plays the episodes with seeds how.seed .. how.seed + how.episodes - 1, how.envs at a time.

    `watch` is called after every step of the first environment, which then shows what the step led
    to. `stopped` is asked before every step; once it says so, StoppedError is raised. Whatever goes
    wrong in an environment is an EnvError.
    """
    spaces = msgspec.structs.replace(spaces, metrics=env_config.metrics)
    metrics: dict[str, list[float]] = {name: [] for name in spaces.metrics}
    scores = Scores([0.0] * how.episodes, [0] * how.episodes, metrics)
    waiting = iter(range(how.episodes))
    with contextlib.closing(_EnvTable(policy, spaces, how)) as table:
        table.make(env_config, how.seed)
        playing: dict[int, int] = {}  # place -> episode
        for place, episode in zip(range(table.places), waiting, strict=False):
            playing[place] = episode
            table.begin(place, how.seed + episode)
        while playing:
            if stopped():
                raise StoppedError
            for place in table.step(list(playing)):
                if watch is not None and place == 0:
                    watch(table.envs[0])
                if not table.over[place]:
                    continue
                episode = playing.pop(place)
                scores.returns[episode] = table.returns[place]
                scores.lengths[episode] = table.lengths[place]
                for name, last in zip(spaces.metrics, table.lasts[place].tolist(), strict=True):
                    if math.isfinite(last):
                        metrics[name].append(last)
                following = next(waiting, None)
                if following is not None:
                    playing[place] = following
                    table.begin(place, how.seed + following)
    return scores


def check(config: EnvConfig) -> None:
    """Raises EnvError when the environment cannot begin its episodes by their seeds."""
    if envpool.is_envpool(config):
        raise EnvError(
            f"env.id = {config.id!r}: EnvPool cannot begin an episode by its seed, so scores would"
            " not compare; do without an evaluation"
        )


class _EnvTable:
    """Steps environments side by side, each a group of one in the frame that the network sees."""

    def __init__(self, policy: PolicyLike, spaces: Spaces, how: EvaluateConfig) -> None:
        self.places = places = min(how.envs, how.episodes)
        self.envs: list[Env] = []
        self.over = [False] * places
        self.returns, self.lengths = [0.0] * places, [0] * places
        self._info = InfoMetrics(spaces.metrics)
        self.lasts = np.full((places, len(spaces.metrics)), np.nan)  # metrics of the episode
        self._policy, self._spaces, self._greedy = policy, spaces, how.greedy
        self._frame = Frame.empty(spaces, groups=places, envs=1)
        self._stacks = FrameStacks(
            spaces, self._frame, memory=policy.memory, previous=policy.previous
        )
        self._actions = ActionConverter(spaces.action)
        self._numbers = {
            name: rows for name, rows in self._frame.obs.items() if rows.dtype.kind == "f"
        }
        self._seeds = [0] * places
        self._id = ""
        self._writer: Writer

    def make(self, config: EnvConfig, seed: int) -> None:
        check(config)
        self._id = config.id
        for place in range(self.places):
            env = make_env(whole_games(config), Where("evaluator", place, seed + place))
            self.envs.append(env)
            check_spaces(config, self._spaces, env)
        self._writer = Writer(self.envs[0].observation_space, self._spaces)

    def begin(self, place: int, seed: int) -> None:
        """Begins an episode; nothing is remembered of the one before."""
        self._seeds[place], self.returns[place], self.lengths[place] = seed, 0.0, 0
        self.over[place], self.lasts[place] = False, np.nan
        with self._blamed("reset", place):
            observation, _ = self.envs[place].reset(seed=seed)
            self._writer.check(observation)
            self._take(place, observation, last=False)
        self._frame.reward[place], self._frame.flags[place] = 0.0, DEAD
        self._stacks.push(place)

    def step(self, places: Sequence[int]) -> Iterator[int]:
        """Steps each of these places once; yields every one that has made its step."""
        rows = np.array(places, np.int64)
        chosen, _, memory = self._policy.act(
            self._stacks.snapshot(rows), self._stacks.memory(rows), greedy=self._greedy
        )
        self._stacks.acted(rows, chosen, memory)
        for place, action in zip(places, self._actions.each(chosen), strict=True):
            self._one(place, action)
            yield place

    def close(self) -> None:
        for env in self.envs:
            with contextlib.suppress(Exception):
                env.close()

    def _one(self, place: int, action: Any) -> None:
        with self._blamed("step", place):
            observation, reward, ended, cut, info = self.envs[place].step(action)
            gained = float(reward)
            if not math.isfinite(gained):
                raise ValueError(f"a reward of {gained}")
            # Nobody acts on an episode's last observation, but a learner would reject it, too.
            self._take(place, observation, last=bool(ended or cut))
        if self._frame.metrics is not None:
            row = self._frame.metrics[place]
            self._info.read(info, row)
            np.copyto(self.lasts[place], row, where=np.isfinite(row))
        self.returns[place] += gained
        self.lengths[place] += 1
        self.over[place] = bool(ended or cut)
        self._frame.reward[place], self._frame.flags[place] = gained, 0
        if not self.over[place]:
            self._stacks.push(place)

    def _take(self, place: int, observation: Any, *, last: bool) -> None:
        """Writes the observation into its rows; raises ValueError if a learner would reject it."""
        self._writer.write(self._frame.obs, place, observation, last=last)
        for name, rows in self._numbers.items():
            if not np.isfinite(rows[place]).all():
                raise ValueError(f"{name}: an observation that is not finite")

    def _blamed(self, where: str, place: int) -> contextlib.AbstractContextManager[None]:
        return blamed(
            f"{self._id} failed in {where} (seed {self._seeds[place]}, after"
            f" {self.lengths[place]} steps)"
        )
