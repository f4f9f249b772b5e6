"""Tests who plays the other agents while a policy is scored."""

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.actors.acting.opponents import RANDOM, player
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig, names_code
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.actors.envs.toys.several_agents import Nim
from headrace.actors.evaluator import play
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.spaces import Leaf, Spaces, discrete

NIM = EnvConfig("headrace.actors.envs.toys.several_agents:Nim", metrics=("right",))
SEATS = EnvConfig("headrace.actors.envs.toys.several_agents:Seats", {"agents": 3})
HOW = EvaluateConfig(episodes=40, envs=4)


def right(obs: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Takes the right number of stones, or one where none is right."""
    left = obs["obs"].argmax(axis=1) + 1
    return np.asarray(np.maximum(left % 4, 1) - 1, np.int64)


def one_stone(obs: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    return np.zeros(len(obs["obs"]), np.int64)


def silent(obs: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    return np.zeros(len(obs["obs"]) + 1, np.int64)


def broken(_: dict[str, NDArray[Any]]) -> None:
    raise RuntimeError("no move")


class Plays:
    """A policy by a function, which keeps what it was asked."""

    version, memory, previous = 0, 0, False

    def __init__(self, moves: Any) -> None:
        self.moves, self.asked = moves, 0

    def act(self, seen: Any, memory: None, *, greedy: bool) -> tuple[Any, Any, None]:
        del memory, greedy
        self.asked += len(seen["obs"])
        return self.moves(seen), np.zeros(len(seen["obs"]), np.float32), None


def winners(first: Any, second: Any) -> list[float]:
    """Plays the same games by hand; returns what the policy wins, who sits where by turns."""
    paid = []
    for episode in range(HOW.episodes):
        env = Nim()
        env.reset(seed=HOW.seed + episode)
        mine = env.possible_agents[episode % 2]
        turns = 0
        while not env._won:
            seen, *_ = env.last()
            own = env.agent_selection == mine
            turns += own
            env.step(int((first if own else second)({"obs": seen[None]})[0]))
        paid.append((1.0 if env._won == mine else -1.0) if turns else 0.0)
    return paid


def test_one_agent_is_the_policy_s_by_turns_and_the_others_are_not() -> None:
    policy = Plays(right)
    against = player(f"{__name__}:one_stone", probe(NIM), 1)
    scores = play(cast(PolicyLike, policy), NIM, probe(NIM), HOW, against=against)
    assert scores.returns == winners(right, one_stone)
    assert 0 < policy.asked < sum(scores.lengths)
    # The metrics are of the policy's own agent, which makes no mistake.
    assert set(scores.metrics["right"]) == {1.0} and len(scores.metrics["right"]) > 30
    other = play(
        cast(PolicyLike, Plays(one_stone)),
        NIM,
        probe(NIM),
        HOW,
        against=player(f"{__name__}:right", probe(NIM), 1),
    )
    assert other.returns == winners(one_stone, right)
    assert sum(other.returns) < 0 < sum(scores.returns)


def test_agents_that_act_at_the_same_time_have_sides_too() -> None:
    """The policy's agent takes the first seat; the other two take theirs, or what it takes."""
    policy = Plays(one_stone)
    how = EvaluateConfig(episodes=6, envs=2)
    alike = play(
        cast(PolicyLike, policy),
        SEATS,
        probe(SEATS),
        how,
        against=cast(PolicyLike, Plays(one_stone)),
    )
    assert alike.returns == pytest.approx([10 / 3] * 6)
    assert policy.asked == sum(alike.lengths)
    other = cast(PolicyLike, Plays(lambda seen: seen["obs"][:, :3].argmax(axis=1)))
    apart = play(cast(PolicyLike, policy), SEATS, probe(SEATS), how, against=other)
    # In every third episode the first agent, whose seat is the first, is the policy's.
    assert apart.returns == pytest.approx([10, 20 / 3, 20 / 3] * 2)


def test_a_random_player_draws_what_is_allowed() -> None:
    leaves = Leaf("obs", "<f4", (2,)), Leaf("may", "|u1", (4,), mask=True)
    dice = player(RANDOM, Spaces(leaves, discrete(4)), seed=1)
    seen: dict[str, NDArray[Any]] = {
        "obs": np.zeros((200, 2), np.float32),
        "may": np.array([[0, 1, 0, 1]] * 200, np.uint8),
    }
    rows, logp, memory = dice.act(seen)
    assert set(rows.tolist()) == {1, 3} and logp.shape == (200,) and memory is None
    again = player(RANDOM, Spaces(leaves, discrete(4)), seed=1).act(seen)[0]
    np.testing.assert_array_equal(rows, again)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silent", r"gives \[2\] for 1 agents; it must give \[1\]"),
        ("broken", "failed, mend it: RuntimeError: no move"),
        ("gone", "cannot be imported: AttributeError"),
    ],
)
def test_a_function_that_does_not_play_is_said_in_a_line(name: str, words: str) -> None:
    with pytest.raises(OwnCodeError, match=words):
        player(f"{__name__}:{name}", probe(NIM), 1).act({"obs": np.zeros((1, 20), np.float32)})


def test_where_nobody_else_plays_nobody_is_played_against() -> None:
    cartpole = EnvConfig("CartPole-v1")
    dice = player(RANDOM, probe(cartpole), 1)
    with pytest.raises(EnvError, match="CartPole-v1 has one agent, and there are no others"):
        play(dice, cartpole, probe(cartpole), HOW, against=dice)


@pytest.mark.parametrize(
    ("against", "code"),
    [("players:mine", True), ("random", False), ("./a:b/run", False), ("runs/nim-1", False)],
)
def test_a_function_is_no_folder(against: str, code: bool) -> None:
    assert names_code(against) is code
