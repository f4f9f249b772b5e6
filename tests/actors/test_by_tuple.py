"""Environments that speak of their agents in tuples, by name."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple

from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.by_tuple import ByTuple
from headrace.actors.envs.agents.kinds import agents_in, takes_turns
from headrace.actors.envs.agents.parallel import Play
from headrace.actors.envs.make import look_at
from headrace.broker.errors import UserError
from headrace.learner.spaces import TERMINATED, TRUNCATED

SEEN = Box(-9.0, 9.0, (2,), np.float32)


class Pairs(gymnasium.Env[Any, Any]):
    """Shows each agent its number and the step, and pays it ten times its number and its action."""

    observation_space = Tuple([SEEN] * 3)
    action_space = Tuple([Discrete(4)] * 3)

    def __init__(self, cut: bool = False, each: bool = False) -> None:
        self.cut, self.each = cut, each
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._seen(), {"begun": True}

    def step(self, action: tuple[int, ...]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert isinstance(action, tuple)
        self.steps += 1
        paid = [10.0 * number + chosen for number, chosen in enumerate(action)]
        over = self.steps == 2
        ended, cut = over and not self.cut, over and self.cut
        said = ([ended] * 3, [cut] * 3) if self.each else (ended, cut)
        return self._seen(), paid, *said, {"success": float(over)}

    def close(self) -> None:
        self.closed = True

    def _seen(self) -> tuple[Any, ...]:
        return tuple(np.array([number, self.steps], np.float32) for number in range(3))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_each_agent_is_its_place_in_the_tuples(cut: bool, each: bool) -> None:
    play = Play(ByTuple(Pairs(cut, each)))
    assert play.agents == ("agent_0", "agent_1", "agent_2")
    for _ in range(2):
        came = play.reset(1)
        assert [seen.tolist() for seen in came.values()] == [[0, 0], [1, 0], [2, 0]]
        for step in (1, 2):
            actions = dict(zip(play.agents, (3, 0, 1), strict=True))
            news, came = play.step(actions)
            assert not came
            assert [told.reward for told in news.values()] == [3.0, 10.0, 21.0]
            for number, told in enumerate(news.values()):
                assert told.observation.tolist() == [number, step]
                assert told.flags == (step == 2) * (TRUNCATED if cut else TERMINATED)
                assert told.info == {"success": float(step == 2)}
        assert play.over


def test_it_is_an_environment_of_several_by_its_wrapper() -> None:
    wrapped = ByTuple(Pairs())
    assert agents_in(wrapped) == 3 and not takes_turns(wrapped)
    wrapped.close()
    assert wrapped.env.closed
    config = EnvConfig(
        id=f"{__name__}:Pairs", wrappers=({"id": "headrace.actors.envs.agents.by_tuple:ByTuple"},)
    )
    assert look_at(config).agents == 3


def test_what_speaks_of_one_agent_is_refused() -> None:
    with pytest.raises(UserError, match="whose spaces are tuples"):
        ByTuple(gymnasium.make("CartPole-v1"))
    uneven = Pairs()
    uneven.action_space = Tuple([Discrete(4)] * 2)
    with pytest.raises(UserError, match="3 agents see something and 2 act"):
        ByTuple(uneven)
