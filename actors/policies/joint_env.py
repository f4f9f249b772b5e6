"""Shows an environment that several policies share as one of gymnasium's."""

import itertools
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.kinds import play_of
from headrace.actors.envs.agents.parallel import News
from headrace.actors.envs.agents.raw_env import RawEnv
from headrace.actors.envs.convert import Writer
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_agents
from headrace.actors.envs.where import Where
from headrace.actors.policies.seats import Seats, episode_of, seats_of, sizes, whose_turn
from headrace.actors.stepping.groups.agents import show_dead, show_first, show_news


class JointEnv(RawEnv):
    """Steps all agents. What they see and are told lies in the observation, and what they do in the
    action, as their seats say.

    Agents that act at the same time are all told of a step. Of those that take turns one is told at
    a time, as by TurnsGroup: first those who have ended, then whose turn it is; so no step ends an
    episode for whoever steps this.
    """

    def __init__(self, runs: Sequence[Mapping[str, Any]], sampler: str) -> None:
        """Makes the environment of these runs' env sections, which differ only in what is each
        policy's own."""
        configs = [msgspec.convert(run, EnvConfig) for run in runs]
        env: Any = make_agents(configs[0])
        seats = seats_of(env, configs)
        nbytes, numbers = sizes(seats)
        super().__init__(nbytes, numbers)
        self.play = play_of(env)
        memory = memoryview(bytearray(nbytes))
        self._seen = np.frombuffer(memory, np.uint8)
        self._turn, self._episode = whose_turn(self._seen[None]), episode_of(self._seen[None])
        # An environment that is made again must not repeat a number.
        self._episodes = itertools.count(secrets.randbits(32))
        self._columns = [_Columns(env, one, memory) for one in seats]
        # By agent: its number over all seats, whose it is, and its place there.
        self._of: dict[str, tuple[int, _Columns, int]] = {}
        for columns, one in zip(self._columns, seats, strict=True):
            for place, agent in enumerate(one.agents):
                self._of[agent] = len(self._of), columns, place
        # Of agents that take turns, what is still to be shown of the newest step, by agent.
        self._untold: deque[tuple[str, Any]] | None = deque() if seats[0].turns else None
        self._ended = False  # who is shown has ended
        # Nobody chooses while it is only looked at, and what is drawn may not be allowed.
        self._draws = np.random.default_rng() if sampler == Where().sampler else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode, with a dead step for all."""
        del options
        came = self.play.reset(seed)
        self._episode[0] = next(self._episodes)
        for columns in self._columns:
            columns.begin(came)
        if self._untold is not None:
            self._untold.clear()
            self._untold.extend(came.items())
            self._show_turn(self._untold)
        return self._seen, {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Steps all that play, or whose turn it is."""
        if self._untold is not None:
            return self._step_turn(self._untold, action)
        news, came = self.play.step(self._chosen(action))
        for columns in self._columns:
            columns.show(news, came)
        return self._seen, 0.0, self.play.over, False, {}

    def _step_turn(
        self, untold: deque[tuple[str, Any]], action: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        if not self._ended:
            news, came = self.play.step(self._chosen(action))
            untold.extend((*news.items(), *came.items()))
        if untold:
            self._show_turn(untold)
        else:
            self.reset()
        return self._seen, 0.0, False, False, {}

    def _show_turn(self, untold: deque[tuple[str, Any]]) -> None:
        agent, told = untold.popleft()
        number, columns, place = self._of[agent]
        columns.show_one(place, told)
        self._turn[0] = number
        self._ended = isinstance(told, News) and told.flags > 0

    def _chosen(self, action: NDArray[np.float32]) -> dict[str, Any]:
        """Returns what those do who act next."""
        chosen: dict[str, Any] = {}
        for columns in self._columns:
            chosen |= columns.chosen(action, self._draws)
        return {agent: chosen[agent] for agent in self.play.acting}

    def close(self) -> None:
        self.play.env.close()


class _Columns:
    """Writes and reads what belongs to one policy's agents."""

    def __init__(self, env: Any, seats: Seats, memory: memoryview) -> None:
        self._seats, self._frame = seats, seats.frame(memory)
        self._all = slice(len(seats.agents))
        # Where its agents' rows are in an action, and how they look.
        self._own = slice(seats.first, seats.first + seats.numbers)
        self._shape = (len(seats.agents), *seats.spaces.action.shape)
        self._dtype = seats.spaces.action.dtype
        self._writer = Writer(env.observation_space(seats.agents[0]), seats.spaces)
        self._actions = ActionConverter(seats.spaces.action)
        self._info = InfoMetrics(seats.spaces.metrics)
        self._mask = next((leaf.name for leaf in seats.spaces.observation if leaf.mask), "")

    def chosen(
        self, action: NDArray[np.float32], draws: np.random.Generator | None
    ) -> dict[str, Any]:
        """Returns by agent what the policy wants it to do, or what was drawn."""
        rows = action[self._own].reshape(self._shape).astype(self._dtype)
        if draws is not None:
            mask = self._frame.obs.get(self._mask)
            rows = random_rows(self._seats.spaces.action, draws, len(rows), mask)
        return dict(zip(self._seats.agents, self._actions.each(rows), strict=True))

    def begin(self, came: Mapping[str, Any]) -> None:
        """Shows what those see who play from the start; the others see nothing yet."""
        show_dead(self._frame, self._all)
        for place, agent in enumerate(self._seats.agents):
            if agent in came:
                show_first(self._frame, place, came[agent], self._writer)
            else:
                for rows in self._frame.obs.values():
                    rows[place] = 0

    def show(self, news: Mapping[str, Any], came: Mapping[str, Any]) -> None:
        """Shows what a step told; who did not play in it has a dead one."""
        show_dead(self._frame, self._all)
        for place, agent in enumerate(self._seats.agents):
            if agent in news:
                self.show_one(place, news[agent])
            elif agent in came:
                self.show_one(place, came[agent])

    def show_one(self, place: int, told: Any) -> None:
        """Shows one agent its news, or what it sees when it begins to play."""
        if isinstance(told, News):
            show_news(self._frame, place, told, self._writer, self._info)
        else:
            show_dead(self._frame, slice(place, place + 1))
            show_first(self._frame, place, told, self._writer)


def joint_config(configs: Sequence[EnvConfig]) -> EnvConfig:
    """Returns the env section by which steppers make the environment that these policies share."""
    runs = [msgspec.to_builtins(config) for config in configs]
    return EnvConfig(id=f"{__name__}:JointEnv", kwargs={"runs": runs, "sampler": "{sampler}"})
