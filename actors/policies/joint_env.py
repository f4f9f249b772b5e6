"""Shows an environment that several policies share as one of gymnasium's."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.parallel import Play
from headrace.actors.envs.agents.raw_env import RawEnv
from headrace.actors.envs.convert import Writer
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_agents
from headrace.actors.envs.where import Where
from headrace.actors.policies.seats import Seats, seats_of, sizes
from headrace.actors.stepping.groups.agents import show_dead, show_first, show_news

ID = f"{__name__}:JointEnv"


class JointEnv(RawEnv):
    """Steps all agents at once. What they see and are told lies in the observation, and what they
    do in the action, as their policies' seats say."""

    def __init__(self, runs: Sequence[Mapping[str, Any]], sampler: str) -> None:
        """Makes the environment of these runs' env sections, which differ only in what is each
        policy's own."""
        configs = [msgspec.convert(run, EnvConfig) for run in runs]
        env: Any = make_agents(configs[0])
        seats = seats_of(env, configs)
        nbytes, numbers = sizes(seats)
        super().__init__(nbytes, numbers)
        self._play = Play(env)
        memory = memoryview(bytearray(nbytes))
        self._seen = np.frombuffer(memory, np.uint8)
        self._columns = [_Columns(self._play, one, memory) for one in seats]
        # Nobody chooses while it is only looked at, and what is drawn may not be allowed.
        self._draws = np.random.default_rng() if sampler == Where().sampler else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode, with a dead step for all."""
        del options
        came = self._play.reset(seed)
        for columns in self._columns:
            columns.begin(came)
        return self._seen, {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Steps all that play."""
        chosen: dict[str, Any] = {}
        for columns in self._columns:
            chosen |= columns.chosen(action, self._draws)
        news, came = self._play.step({agent: chosen[agent] for agent in self._play.acting})
        for columns in self._columns:
            columns.show(news, came)
        return self._seen, 0.0, self._play.over, False, {}

    def close(self) -> None:
        self._play.env.close()


class _Columns:
    """Writes and reads what belongs to one policy's agents."""

    def __init__(self, play: Play, seats: Seats, memory: memoryview) -> None:
        self._seats, self._frame = seats, seats.frame(memory)
        self._all = slice(len(seats.agents))
        self._writer = Writer(play.env.observation_space(seats.agents[0]), seats.spaces)
        self._actions = ActionConverter(seats.spaces.action)
        self._info = InfoMetrics(seats.spaces.metrics)
        self._mask = next((leaf.name for leaf in seats.spaces.observation if leaf.mask), "")

    def chosen(
        self, action: NDArray[np.float32], draws: np.random.Generator | None
    ) -> dict[str, Any]:
        """Returns by agent what the policy wants it to do, or what was drawn."""
        rows = self._seats.rows(action)
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
                show_news(self._frame, place, news[agent], self._writer, self._info)
            elif agent in came:
                show_first(self._frame, place, came[agent], self._writer)


def joint_config(configs: Sequence[EnvConfig]) -> EnvConfig:
    """Returns the env section by which steppers make the environment that these policies share."""
    runs = [msgspec.to_builtins(config) for config in configs]
    return EnvConfig(id=ID, kwargs={"runs": runs, "sampler": "{sampler}"})
