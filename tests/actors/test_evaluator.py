"""Episodes played for their score: which ones, with what the network sees and remembers."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.actors.evaluator import Scores, StoppedError, play
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.spaces import Spaces
from headrace.learner.weights import FlatWeights, layout_digest

WALK = EnvConfig(id=f"{__name__}:Walk")


class Walk(gymnasium.Env[Any, Any]):
    """An episode's length and pay follow from its seed alone: 1 + seed % 7 steps that pay the seed
    each, so any other episode than the one that was meant shows."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    made: list["Walk"] = []  # noqa: RUF012
    fails_at = -1  # seed whose episode breaks
    pays: float | None = None
    blind_at: tuple[int, int] | None = None  # seed and step that show what is no number

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.given: list[int] = []
        self.closed = False
        self.seed = self.steps = 0
        Walk.made.append(self)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.seeds.append(seed)
        self.seed, self.steps = seed, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.seed == Walk.fails_at:
            raise RuntimeError("broken")
        self.given.append(action)
        self.steps += 1
        over = self.steps == 1 + self.seed % 7
        cut = over and self.seed % 2 == 0
        pay = float(self.seed) if Walk.pays is None else Walk.pays
        return self._seen(), pay, over and not cut, cut, {}

    def close(self) -> None:
        self.closed = True

    def _seen(self) -> NDArray[np.float32]:
        if (self.seed, self.steps) == Walk.blind_at:
            return np.array([self.seed, np.inf], np.float32)
        return np.array([self.seed, self.steps], np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "made", [])
    monkeypatch.setattr(Walk, "fails_at", -1)
    monkeypatch.setattr(Walk, "pays", None)
    monkeypatch.setattr(Walk, "blind_at", None)


class Script:
    """A policy that notes what it is shown. Its memory counts the steps of an episode."""

    version = 0

    def __init__(self, *, memory: int = 0, previous: bool = False) -> None:
        self.memory, self.previous = memory, previous
        self.rows: list[tuple[int, int]] = []  # (seed, step) of each row it was asked for
        self.remembered: list[float] = []
        self.greedy: set[bool] = set()
        self.before: list[tuple[int, float]] = []

    def act(
        self,
        obs: dict[str, NDArray[np.generic]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]:
        seen = np.asarray(obs["obs"], np.int64)
        self.rows += [(int(seed), int(step)) for seed, step in seen]
        self.greedy.add(greedy)
        if self.previous:
            choices, rewards = obs["previous.choices"][:, 0], obs["previous.reward"]
            self.before += list(zip(choices.tolist(), rewards.tolist(), strict=True))
        if memory is not None:
            self.remembered += memory[:, 0].tolist()
            memory = memory + 1
        return seen.sum(axis=1) % 3, np.zeros(len(seen), np.float32), memory


def walk(policy: PolicyLike, episodes: int, envs: int, *, seed: int = 100, **other: Any) -> Scores:
    return play(policy, WALK, spaces(), of(episodes, envs, seed), **other)


def of(episodes: int, envs: int, seed: int, *, greedy: bool = True) -> EvaluateConfig:
    return EvaluateConfig(episodes=episodes, envs=envs, seed=seed, greedy=greedy)


def spaces() -> Spaces:
    found = probe(WALK)
    Walk.made.clear()
    return found


@pytest.mark.parametrize(("episodes", "envs"), [(1, 1), (1, 4), (7, 3), (20, 4), (20, 1), (4, 9)])
def test_exactly_the_episodes_of_these_seeds(episodes: int, envs: int) -> None:
    policy = Script()
    scores = walk(policy, episodes, envs)
    seeds = range(100, 100 + episodes)
    assert scores.lengths == [1 + seed % 7 for seed in seeds]
    assert scores.returns == [seed * (1 + seed % 7) for seed in seeds]
    assert sorted(seed for env in Walk.made for seed in env.seeds) == list(seeds)
    assert len(Walk.made) == min(episodes, envs)
    assert all(env.closed for env in Walk.made)
    # Every step of every episode was asked for once, from its first observation to the one before
    # the last.
    assert sorted(policy.rows) == [(s, step) for s in seeds for step in range(1 + s % 7)]


def test_each_environment_gets_the_action_of_its_own_row() -> None:
    walk(Script(), 20, 4)
    for env in Walk.made:
        expected = [(seed + step) % 3 for seed in env.seeds for step in range(1 + seed % 7)]
        assert env.given == expected


def test_how_many_play_side_by_side_changes_no_score() -> None:
    assert walk(Script(), 13, 1) == walk(Script(), 13, 5)


@pytest.mark.parametrize("greedy", [True, False])
def test_greedy_or_drawn_is_the_policys_affair(greedy: bool) -> None:
    policy = Script()
    play(policy, WALK, spaces(), of(3, 2, 0, greedy=greedy))
    assert policy.greedy == {greedy}


def test_nothing_is_remembered_of_the_episode_before() -> None:
    policy = Script(memory=1, previous=True)
    walk(policy, 20, 3)
    # The memory counts the steps of this episode, so it is the number of the step.
    assert policy.remembered == [step for _, step in policy.rows]
    first = [seen for seen, (_, step) in zip(policy.before, policy.rows, strict=True) if not step]
    assert set(first) == {(-1, 0.0)}
    later = [
        (seen, (seed + step - 1) % 3)
        for seen, (seed, step) in zip(policy.before, policy.rows, strict=True)
        if step
    ]
    assert later
    assert all(seen == (chosen, 1.0) for seen, chosen in later)  # the reward is cut at 1


def test_who_watches_sees_every_step_of_the_first_environment() -> None:
    seen: list[tuple[int, int]] = []

    def watch(env: Any) -> None:
        assert env is Walk.made[0]
        seen.append((env.seed, env.steps))

    walk(Script(), 12, 3, watch=watch)
    first = Walk.made[0].seeds
    assert len(first) > 1
    assert seen == [(seed, step) for seed in first for step in range(1, 2 + seed % 7)]


def test_it_stops_between_two_steps() -> None:
    policy, answers = Script(), iter([False, False, True])
    with pytest.raises(StoppedError):
        walk(policy, 20, 4, seed=0, stopped=lambda: next(answers))
    # Seeds 0 to 3 have 1, 2, 3, 4 steps; in place of the first one came seed 4.
    assert sorted(policy.rows) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0)]
    assert all(env.closed for env in Walk.made)


def test_a_broken_environment_is_named_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "fails_at", 103)
    with pytest.raises(EnvError, match=r"Walk failed in step \(seed 103, .*RuntimeError: broken"):
        walk(Script(), 20, 4)
    assert all(env.closed for env in Walk.made)


def test_a_reward_that_is_no_number_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "pays", float("nan"))
    with pytest.raises(EnvError, match="a reward of nan"):
        walk(Script(), 2, 2)


@pytest.mark.parametrize(
    ("step", "where"),
    [
        (0, "reset (seed 103, after 0"),
        (2, "step (seed 103, after 1"),
        (6, "step (seed 103, after 5"),
    ],
)
def test_an_observation_that_is_no_number_is_no_score(
    monkeypatch: pytest.MonkeyPatch, step: int, where: str
) -> None:
    """Seed 103 has six steps: the last observation counts, too."""
    monkeypatch.setattr(Walk, "blind_at", (103, step))
    with pytest.raises(EnvError, match="obs: an observation that is not finite") as caught:
        walk(Script(), 20, 4)
    assert where in str(caught.value)


def test_envpool_is_refused() -> None:
    with pytest.raises(EnvError, match="EnvPool"):
        play(Script(), EnvConfig(id="envpool:CartPole-v1"), spaces(), of(1, 1, 0))


def test_stacked_images_begin_with_the_first_one_of_their_own_episode() -> None:
    config = EnvConfig(id="headrace/Catch-v0", stack=3)

    class Look(Script):
        firsts = 0

        def act(self, obs: Any, *_: Any, **__: Any) -> Any:
            images = obs["obs"]
            assert images.shape[1:] == (3, 84, 84)
            for stack in images:
                row = [int(np.argmax((image == 255).any(axis=1))) // 7 for image in stack]
                # The ball falls a row a step; before the first row there is only that.
                assert row == [max(0, row[-1] - 2), max(0, row[-1] - 1), row[-1]]
                self.firsts += row[-1] == 0
            count = len(images)
            return np.ones(count, np.int64), np.zeros(count, np.float32), None

    policy = Look()
    scores = play(policy, config, probe(config), of(6, 2, 0))
    assert scores.lengths == [11] * 6
    assert policy.firsts == 6


# ---- with a real network ------------------------------------------------------------------------

MAZE = EnvConfig(id=f"{__name__}:Maze", mask="allowed")


class Maze(gymnasium.Env[Any, Any]):
    """Pays what tells every sequence of choices apart; asserts that only allowed ones are made."""

    observation_space = gymnasium.spaces.Dict(
        {
            "at": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32),
            "allowed": gymnasium.spaces.MultiBinary(4),
        }
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5 + int(self.np_random.integers(4))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.allowed[action]
        self.left -= 1
        return self._seen(), float((1 + action) * 5.0**-self.left), self.left == 0, False, {}

    def _seen(self) -> dict[str, Any]:
        self.allowed = np.ones(4, np.int8)
        self.allowed[self.np_random.choice(4, 2, replace=False)] = 0
        at = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"at": at, "allowed": self.allowed}


def opinionated(config: ModelConfig, found: Spaces) -> Model:
    model = build(config, found, seed=3)
    with torch.no_grad():
        for number in model.parameters():
            number.mul_(3.0)
    return model


def policy_of(model: Model, config: ModelConfig, found: Spaces, *, seed: int) -> Policy:
    policy = Policy(config, found, seed=seed, precision="float32")
    policy.load(Blob.of(1, layout_digest(model), FlatWeights(model).dump()))
    return policy


def by_hand(model: Model, seed: int) -> tuple[float, int]:
    """One episode, one environment, the likeliest of the allowed actions."""
    env, total, length, over = Maze(), 0.0, 0, False
    seen, _ = env.reset(seed=seed)
    memory = torch.zeros(1, model.memory) if model.memory else None
    while not over:
        rows = {name: torch.from_numpy(value[None]) for name, value in seen.items()}
        with torch.no_grad():
            params, memory = model.policy(rows, memory)
        seen, reward, over, _, _ = env.step(int(params.argmax()))
        total, length = total + reward, length + 1
    return total, length


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_network_plays_here_as_it_does_alone(core: Any) -> None:
    config, found = ModelConfig(hidden=(8,), core=core, core_units=6), probe(MAZE)
    model = opinionated(config, found)
    expected = [by_hand(model, 40 + episode) for episode in range(9)]
    for dice, envs in ((1, 1), (2, 4)):
        policy = policy_of(model, config, found, seed=dice)
        scores = play(policy, MAZE, found, of(9, envs, 40))
        assert list(zip(scores.returns, scores.lengths, strict=True)) == expected


def test_drawn_actions_are_others_and_allowed_all_the_same() -> None:
    config, found = ModelConfig(hidden=(8,)), probe(MAZE)
    model = opinionated(config, found)
    drawn = [
        play(policy_of(model, config, found, seed=dice), MAZE, found, of(9, 3, 40, greedy=False))
        for dice in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]  # the same dice
    assert drawn[0].returns != drawn[2].returns
    assert drawn[0].lengths == drawn[2].lengths  # the same episodes
