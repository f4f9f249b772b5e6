"""Plays episodes to score a policy, always the same episodes.

Episode i begins with seed + i, whoever plays it: so the scores of two policies compare. Exactly
those episodes count, not the first that end: short ones would be too many.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.side_player import SidePlayer
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs import envpool
from headrace.actors.envs.agents.kinds import AnyPlay, play_of
from headrace.actors.envs.atari import whole_games
from headrace.actors.envs.convert import EnvError, blamed
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_any
from headrace.actors.envs.where import Where
from headrace.actors.stepping.groups.group import check_spaces
from headrace.learner.spaces import Spaces

Metrics: TypeAlias = NDArray[np.float64]  # [metrics]


class Scores(NamedTuple):
    """Holds returns and lengths by episode, in the order of the seeds; and metrics. Of several
    agents the return is their mean, and so are the metrics each agent's; against others, that of
    the one that the policy played."""

    returns: list[float]
    lengths: list[int]
    # By name in env.metrics: last values of the episodes that gave it, in the order of their ends.
    metrics: Mapping[str, list[float]] = MappingProxyType({})

    @property
    def outcomes(self) -> tuple[int, int, int]:
        """Counts games won, drawn and lost: those that paid more than 0, 0, or less."""
        won, lost = sum(one > 0 for one in self.returns), sum(one < 0 for one in self.returns)
        return won, len(self.returns) - won - lost, lost


class Seated(NamedTuple):
    """Describes who plays agents that the policy does not play."""

    player: PolicyLike
    spaces: Spaces  # of these agents
    agents: tuple[str, ...]


class StoppedError(Exception):
    """Ends an evaluation that was told to stop; nothing of what was played counts."""


class TooLongError(Exception):
    """Ends an evaluation of which an episode goes on and on."""


def play(
    policy: PolicyLike,
    env_config: EnvConfig,
    spaces: Spaces,
    how: EvaluateConfig,
    *,
    against: PolicyLike | None = None,
    others: Sequence[Seated] = (),
    watch: Callable[[Any], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    longest: float = math.inf,
) -> Scores:
    """Plays the episodes with seeds how.seed .. how.seed + how.episodes - 1, how.envs at a time.
    `against` plays all agents but one, in each episode another one; None = nobody else plays.
    `others` play always the same agents, all those that env.agents does not name.

    `watch` is called after every step of the first environment, which then shows what the step led
    to. `stopped` is asked before every step; once it says so, StoppedError is raised. An episode
    that is not over after `longest` steps is a TooLongError, whatever goes wrong in an environment
    an EnvError.
    """
    spaces = msgspec.structs.replace(spaces, metrics=env_config.metrics)
    metrics: dict[str, list[float]] = {name: [] for name in spaces.metrics}
    scores = Scores([0.0] * how.episodes, [0] * how.episodes, metrics)
    waiting = iter(range(how.episodes))
    with contextlib.closing(_EnvTable(policy, spaces, how, against, others)) as table:
        table.make(env_config, how.seed)
        playing: dict[int, int] = {}  # place -> episode
        for place, episode in zip(range(table.places), waiting, strict=False):
            playing[place] = episode
            table.begin(place, how.seed + episode, episode)
        while playing:
            if stopped():
                raise StoppedError
            for place in table.step(list(playing)):
                if watch is not None and place == 0:
                    watch(table.envs[0].env)
                if not table.over[place]:
                    if table.lengths[place] >= longest:
                        raise TooLongError
                    continue
                episode = playing.pop(place)
                scores.returns[episode] = table.returned(place)
                scores.lengths[episode] = table.lengths[place]
                for lasts in table.lasts[place].values():
                    for name, last in zip(spaces.metrics, lasts.tolist(), strict=True):
                        if math.isfinite(last):
                            metrics[name].append(last)
                following = next(waiting, None)
                if following is not None:
                    playing[place] = following
                    table.begin(place, how.seed + following, following)
    return scores


def check(config: EnvConfig) -> None:
    """Raises EnvError when the environment cannot begin its episodes by their seeds."""
    if envpool.is_envpool(config):
        raise EnvError(
            f"env.id = {config.id!r}: EnvPool cannot begin an episode by its seed, so scores would"
            " not compare; do without an evaluation"
        )


def check_others(config: EnvConfig, agents: int, key: str = "evaluate.against") -> None:
    """Raises EnvError when nobody but the policy can play in an environment of so many agents;
    `key`: the setting that wants others to."""
    if agents < 2:
        raise EnvError(f"{key}: {config.id} has one agent, and there are no others")


class _EnvTable:
    """Steps environments side by side; the policy that is scored plays some of their agents, or
    all."""

    def __init__(
        self,
        policy: PolicyLike,
        spaces: Spaces,
        how: EvaluateConfig,
        against: PolicyLike | None = None,
        others: Sequence[Seated] = (),
    ) -> None:
        self.places = places = min(how.envs, how.episodes)
        self.envs: list[AnyPlay] = []
        self.over = [False] * places
        self.lengths = [0] * places
        self.lasts: list[dict[str, Metrics]] = [{} for _ in range(places)]  # of the episode
        self._totals: list[dict[str, float]] = [{} for _ in range(places)]  # returns, by agent
        self._info = InfoMetrics(spaces.metrics)
        self._spaces, self._greedy = spaces, how.greedy
        # The policy that is scored, and who plays the agents that it does not play.
        self._sides = [SidePlayer(policy, spaces)]
        self._sides += [] if against is None else [SidePlayer(against, spaces)]
        self._sides += [SidePlayer(one.player, one.spaces) for one in others]
        # Who always plays an agent, by their places there; the rest are the policy's.
        self._fixed = {
            agent: side for side, one in enumerate(others, start=1) for agent in one.agents
        }
        # What the policy plays in an episode against somebody; "" = all that is not fixed.
        self._seats: list[str] = [""] * places
        self._against = against is not None
        self._seeds = [0] * places
        self._id = ""

    def make(self, config: EnvConfig, seed: int) -> None:
        check(config)
        self._id = config.id
        for place in range(self.places):
            env = make_any(whole_games(config), Where("evaluator", place, seed + place))
            self.envs.append(play_of(env))
            check_spaces(config, self._spaces, env)
        first = self.envs[0]
        self._agents = first.agents
        if self._against:
            check_others(config, len(self._agents))
        for number, side in enumerate(self._sides):
            own = [agent for agent in self._agents if self._fixed.get(agent, 0) == number]
            space = first.space_of((own or self._agents)[0])
            side.begin(self.places * len(self._agents), space)

    def returned(self, place: int) -> float:
        """Returns what the episode has paid: to each agent of ours that played in it, on average;
        0 = none did."""
        totals = self._totals[place]
        return sum(totals.values()) / len(totals) if totals else 0.0

    def begin(self, place: int, seed: int, episode: int) -> None:
        """Begins an episode; nothing is remembered of the one before."""
        self._seeds[place], self.lengths[place] = seed, 0
        self._seats[place] = self._agents[episode % len(self._agents)]
        self.over[place] = False
        self.lasts[place].clear()
        self._totals[place].clear()
        with self._blamed("reset", place):
            for agent, observation in self.envs[place].reset(seed).items():
                self._come(place, agent, observation)

    def step(self, places: Sequence[int]) -> Iterator[int]:
        """Steps each of these places once; yields every one that has made its step."""
        playing = [(place, agent) for place in places for agent in self.envs[place].acting]
        actions: dict[int, dict[str, Any]] = {place: {} for place in places}
        for number, side in enumerate(self._sides):
            own = [who for who in playing if self._side(*who) == number]
            if not own:  # all wait for others, or for agents that come later
                continue
            chosen = side.act([self._column(*who) for who in own], greedy=self._greedy)
            for (place, agent), action in zip(own, chosen, strict=True):
                actions[place][agent] = action
        for place in places:
            self._one(place, actions[place])
            yield place

    def close(self) -> None:
        for play in self.envs:
            with contextlib.suppress(Exception):
                play.env.close()

    def _one(self, place: int, actions: dict[str, Any]) -> None:
        totals = self._totals[place]
        with self._blamed("step", place):
            news, came = self.envs[place].step(actions)
            for agent, told in news.items():
                if not math.isfinite(told.reward):
                    raise ValueError(f"a reward of {told.reward}")
                # Nobody acts on an episode's last observation, but a learner would reject it, too.
                number, column = self._side(place, agent), self._column(place, agent)
                side = self._sides[number]
                side.take(column, told.observation, last=bool(told.flags))
                if number == 0:
                    totals[agent] += told.reward
                    if side.frame.metrics is not None:
                        row = side.frame.metrics[column]
                        self._info.read(told.info, row)
                        np.copyto(self.lasts[place][agent], row, where=np.isfinite(row))
                side.frame.reward[column], side.frame.flags[column] = told.reward, 0
                if not told.flags:
                    side.stacks.push(column)
            for agent, observation in came.items():
                self._come(place, agent, observation)
        self.lengths[place] += 1
        self.over[place] = self.envs[place].over

    def _come(self, place: int, agent: str, observation: Any) -> None:
        """Takes in an agent that begins to play."""
        number = self._side(place, agent)
        self._sides[number].come(self._column(place, agent), observation)
        if number == 0:
            self._totals[place].setdefault(agent, 0.0)
            self.lasts[place].setdefault(agent, np.full(len(self._spaces.metrics), np.nan))

    def _side(self, place: int, agent: str) -> int:
        """Returns who plays this agent in the episode: 0 = the policy."""
        if self._against:
            return int(agent != self._seats[place])
        return self._fixed.get(agent, 0)

    def _column(self, place: int, agent: str) -> int:
        return place * len(self._agents) + self._agents.index(agent)

    def _blamed(self, where: str, place: int) -> contextlib.AbstractContextManager[None]:
        return blamed(
            f"{self._id} failed in {where} (seed {self._seeds[place]}, after"
            f" {self.lengths[place]} steps)"
        )
