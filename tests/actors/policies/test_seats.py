"""Whose agents are whose, and what cannot be."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.actors.acting.opponents import Player
from headrace.actors.config import ActorConfig, EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_any, probe
from headrace.actors.envs.toys.several_agents import Nim, Signals
from headrace.actors.evaluator import Seated, play
from headrace.actors.policies.seats import seats_of, untrained
from headrace.actors.policies.sharing import Learner, share
from headrace.broker.errors import UserError

TOYS = "headrace.actors.envs.toys.several_agents"


def configs(*agents: Sequence[str], env: str = "Signals", **kwargs: Any) -> list[EnvConfig]:
    return [EnvConfig(f"{TOYS}:{env}", kwargs, agents=tuple(own)) for own in agents]


def test_each_has_its_agents_and_their_spaces() -> None:
    speaker, listeners = seats_of(Signals(3), configs(["speaker"], ["listener_*"], listeners=3))
    assert speaker.agents == ("speaker",)
    assert listeners.agents == ("listener_0", "listener_1", "listener_2")
    assert speaker.spaces.action.categories == (4,) and listeners.spaces.action.categories == (3,)
    assert (speaker.first, listeners.first, listeners.numbers) == (0, 1, 3)
    assert speaker.at == 0 and listeners.at == speaker.nbytes


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ((["speaker"],), "nobody plays listener_0: add them to the agents of a policy"),
        ((["speaker"], ["listener_0", "speaker"]), "speaker is played by two"),
        ((["speaker"], ["wolf"]), "'wolf' names none of its agents"),
    ],
)
def test_agents_that_are_missing_or_wrong(agents: tuple[list[str], ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        seats_of(Signals(), configs(*agents))


def test_an_agent_has_one_player() -> None:
    with pytest.raises(EnvError, match=r"first is played by two, env.agents = \[\['first'\], "):
        seats_of(Nim(), configs(["first"], ["*"], env="Nim"))


def test_who_is_not_trained_plays_all_agents_that_name_it() -> None:
    config = EnvConfig("x", others={"a": "random", "b": "own:f", "c_*": "random"})
    assert [(name, one.agents) for name, one in untrained(config)] == [
        ("random", ("a", "c_*")),
        ("own:f", ("b",)),
    ]


def test_what_several_policies_need_in_a_game_of_turns() -> None:
    learners = [
        Learner(name, config, 2, lambda: "", id, bool)
        for name, config in zip("ab", configs(["first"], ["second"], env="Nim"), strict=True)
    ]
    with pytest.raises(EnvError, match=r"each plays one agent, with .*; it has 2 col"):
        share(learners, ActorConfig(), player=lambda *_: Player(repeat), seed=0, sampler="one")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((4, 6), "unroll.envs = 6, and each of its 4 agents is a column; set it to 4"),
        ((4, 8), "must be the same multiple of each policy's agents; there is a: 4 for 1 agents"),
    ],
)
def test_an_unroll_holds_as_many_environments_for_each(
    columns: tuple[int, int], words: str
) -> None:
    own = configs(["speaker"], ["listener_*"], listeners=4)
    learners = [
        Learner(name, config, count, lambda: "", id, bool)
        for name, config, count in zip("ab", own, columns, strict=True)
    ]
    with pytest.raises(EnvError, match=words):
        share(learners, ActorConfig(), player=lambda *_: Player(repeat), seed=0, sampler="one")


def test_one_agent_is_not_shared() -> None:
    with pytest.raises(EnvError, match="has one agent, and"):
        seats_of(make_any(EnvConfig("CartPole-v1")), configs(["a"], ["b"]))


def repeat(seen: dict[str, NDArray[Any]], count: int) -> NDArray[Any]:
    """Answers with the place of what is shown: a speaker with the symbol, a listener with it."""
    del count
    return np.asarray(seen["obs"].argmax(axis=1), np.int64)


def wrong(seen: dict[str, NDArray[Any]], count: int) -> NDArray[Any]:
    return (repeat(seen, count) + 1) % 3


@pytest.mark.parametrize(("speaks", "mean"), [(repeat, 1.0), (wrong, 0.0)])
def test_policies_of_other_spaces_are_scored_together(speaks: Any, mean: float) -> None:
    speaker, listener = configs(["speaker"], ["listener_*"], listeners=2)
    others = [Seated(Player(speaks), probe(speaker), ("speaker",))]
    how = EvaluateConfig(episodes=5, envs=2)
    scores = play(Player(repeat), listener, probe(listener), how, others=others)
    assert scores.returns == pytest.approx([mean] * 5)
    assert scores.lengths == [10] * 5
