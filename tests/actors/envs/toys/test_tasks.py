"""Our own tasks: who knows the answer gets what the docstring says, who guesses does not."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import Writer
from headrace.actors.envs.make import make_env, probe
from headrace.actors.envs.toys.tasks import Masked, Multi, Parts, Tracker
from headrace.actors.stepping.stepper import Frame

Policy = Callable[[Any], Any]


def returns(env: gymnasium.Env[Any, Any], policy: Policy, episodes: int = 30) -> list[float]:
    found = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over, steps = 0.0, False, 0
        while not over:
            assert env.observation_space.contains(observation)
            observation, reward, ended, cut, _ = env.step(policy(observation))
            total, over, steps = total + float(reward), ended or cut, steps + 1
        assert steps <= 100
        found.append(total)
    return found


def answer_multi(seen: Any) -> Any:
    return seen + np.array([0, 1, 0])


def answer_parts(seen: Any) -> int:
    if not seen["lamp"][0]:
        return 0
    return 2 if seen["numbers"][seen["which"]] > 0 else 1


def answer_tracker(seen: Any) -> Any:
    return (2 + 4 * seen["target"]).astype(np.float32), seen["which"]


def collect(seen: Any) -> int:
    row, column, coin_row, coin_column = (2 * seen["board"] + 2).round().astype(int).tolist()
    if row != coin_row:
        return 1 if row < coin_row else 0
    return 3 if column < coin_column else 2


@pytest.mark.parametrize(
    ("task", "policy"),
    [(Multi, answer_multi), (Parts, answer_parts), (Tracker, answer_tracker), (Masked, collect)],
)
def test_the_best_return_is_one(task: Any, policy: Policy) -> None:
    np.testing.assert_allclose(returns(task(), policy), 1.0, atol=1e-6)


@pytest.mark.parametrize(("task", "chance"), [(Multi, 0.344), (Parts, 0.333)])
def test_by_chance(task: Any, chance: float) -> None:
    env = task()
    env.action_space.seed(1)
    mean = np.mean(returns(env, lambda _: env.action_space.sample(), 300))
    assert mean == pytest.approx(chance, abs=0.02)


def test_every_part_of_parts_is_needed() -> None:
    """Without the lamp half is lost, without `which` a part of the rest."""
    blind = returns(Parts(), lambda seen: answer_parts(seen | {"lamp": [1]}))
    assert np.mean(blind) == pytest.approx(0.5, abs=0.05)
    fixed = returns(Parts(), lambda seen: answer_parts(seen | {"which": 0}))
    assert np.mean(fixed) == pytest.approx(0.5 + 0.5 * 2 / 3, abs=0.05)


def test_a_tracker_that_is_off_by_a_tenth() -> None:
    dice = np.random.default_rng(0)

    def near(seen: Any) -> Any:
        numbers, which = answer_tracker(seen)
        return numbers + 0.4 * dice.normal(size=2), which

    assert np.mean(returns(Tracker(), near)) == pytest.approx(0.995, abs=0.001)


def test_what_is_forbidden_ends_the_episode() -> None:
    env = Masked()
    seen, _ = env.reset(seed=1)
    while seen["allowed"][0]:
        seen = env.step(0)[0]
    seen, reward, ended, _, _ = env.step(0)
    assert (reward, ended) == (-1.0, True)
    assert not seen["allowed"].any()


def test_going_round_and_round_is_cut_and_pays_less() -> None:
    env = Masked()
    dice = np.random.default_rng(2)
    found = returns(env, lambda seen: int(dice.choice(np.flatnonzero(seen["allowed"]))))
    assert min(found) >= 0
    assert max(found) < 0.7


def test_a_pole_without_velocities() -> None:
    full, half = (
        make_env(EnvConfig(name)) for name in ("CartPole-v1", "headrace/CartPolePositions-v0")
    )
    seen, shown = full.reset(seed=4)[0], half.reset(seed=4)[0]
    for step in range(8):
        np.testing.assert_array_equal(shown, seen[[0, 2]])
        assert half.observation_space.contains(shown)
        seen, shown = full.step(step % 2)[0], half.step(step % 2)[0]


@pytest.mark.parametrize("name", ["Multi", "Parts", "Tracker", "Masked", "CartPolePositions"])
def test_they_are_made_by_name(name: str) -> None:
    mask = "allowed" if name == "Masked" else ""
    config = EnvConfig(f"headrace/{name}-v0", mask=mask)
    spaces, env = probe(config), make_env(config)
    observation, _ = env.reset(seed=0)
    writer = Writer(env.observation_space, spaces)
    writer.check(observation)
    writer.write(Frame.empty(spaces, groups=1, envs=1).obs, 0, observation)
