"""Parts of the observation that env.critic names, and the state of an environment of several."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError, as_data
from headrace.actors.envs.make import look_at, make_agents
from headrace.actors.envs.toys.several_agents import Seats
from headrace.actors.envs.where import Where

SEEN = Box(-1, 1, (2,), np.float32)
SPACE = Dict(seen=SEEN, true=Dict(mass=SEEN, wind=SEEN), legal=MultiBinary(4))


def test_a_part_is_named_whole_or_by_what_is_in_it() -> None:
    def critic(*names: str) -> tuple[str, ...]:
        return as_data(SPACE, Discrete(4), EnvConfig("some-v0", critic=names)).critic

    assert critic() == ()
    assert critic("true") == ("true.mass", "true.wind")
    assert critic("true.wind") == ("true.wind",)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("tru",), r"env.critic = 'tru' is no part of the observation, which has .*'true.mass'"),
        (("legal",), "env.critic names the mask"),
        (("seen", "true"), "env.critic leaves nothing for the policy to see"),
    ],
)
def test_what_cannot_be(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        as_data(SPACE, Discrete(4), EnvConfig("some-v0", critic=names, mask="legal"))


class Whole(Seats):
    """Has a state, as PettingZoo's environments have."""

    state_space = Box(0.0, 1.0, (2,), np.float32)

    def state(self) -> Any:
        return self._taken.copy()


def test_the_state_of_an_environment_of_several_agents_is_a_part() -> None:
    wrapper = {"id": "headrace.actors.envs.agents.global_state:GlobalState"}
    config = EnvConfig(f"{__name__}:Whole", wrappers=(wrapper,), critic=("state",))
    spaces, agents, turns = look_at(config)
    assert (spaces.critic, agents, turns) == (("state",), 2, False)
    assert [leaf.name for leaf in spaces.observation] == ["own", "state"]
    env: Any = make_agents(config, Where())
    seen, _ = env.reset(seed=1)
    assert seen["agent_0"]["state"].tolist() == [0.0, 0.0]
    seen, *_ = env.step({"agent_0": 1, "agent_1": 1})
    assert all(one["state"].tolist() == [0.0, 1.0] for one in seen.values())
    assert env.observation_space("agent_1").contains(seen["agent_1"])
