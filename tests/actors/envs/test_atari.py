"""Both ways to play Atari: the same frames, rewards and ends, byte for byte."""

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.actors import evaluator
from headrace.actors.acting.policy import Policy
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.atari import whole_games
from headrace.actors.envs.convert import EnvError, spaces_of
from headrace.actors.envs.make import make_any, make_env, make_vector, probe
from headrace.actors.envs.where import Where
from headrace.learner.config import ModelConfig
from headrace.learner.spaces import Leaf, discrete
from tests.needs import missing

FRAME = Leaf("obs", "|u1", (84, 84))


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    if importlib.util.find_spec("ale_py") is None or importlib.util.find_spec("cv2") is None:
        line = "not installed: pip install 'headrace[atari]'"
        missing(line)


class Dice:
    """Throws what it is told to, and remembers what it was asked."""

    def __init__(self, throws: int) -> None:
        self.throws, self.below = throws, 0

    def integers(self, below: int) -> int:
        self.below = below
        return self.throws


def both(game: str, **kwargs: Any) -> tuple[Any, Any]:
    config = EnvConfig(f"ALE/{game}-v5", kwargs)
    return make_env(config), make_vector(config, 1)


def compare(game: str, steps: int, **kwargs: Any) -> tuple[int, int, list[float]]:
    """Plays the same actions; terminations, truncations and rewards that came."""
    reference, native = both(game, **kwargs)
    frame, frames = reference.reset(seed=5)[0], native.reset(seed=5)[0]
    rng, over = np.random.default_rng(0), False
    terminations, truncations, rewards = 0, 0, []
    for step in range(steps):
        np.testing.assert_array_equal(frame, frames[0], f"step {step}")
        action = rng.integers(reference.action_space.n)
        frames, *told = native.step(np.array([action]))
        if over:  # the native class takes this step to begin anew
            frame, said = reference.reset()[0], (0.0, False, False)
        else:
            frame, *said = reference.step(action)[:4]
        assert tuple(said) == tuple(array[0] for array in told[:3]), f"step {step}"
        rewards.append(said[0])
        terminations, truncations = terminations + said[1], truncations + said[2]
        over = said[1] or said[2]
    reference.close()
    native.close()
    return terminations, truncations, rewards


# noop_max = 1 is a start without waiting: beyond that the two throw different dice.
@pytest.mark.slow
@pytest.mark.parametrize("game", ["Pong", "Breakout", "SpaceInvaders"])
def test_both_ways_play_the_same(game: str) -> None:
    terminations, _, rewards = compare(game, 620, noop_max=1)
    assert any(rewards)
    assert terminations or game == "Pong"
    assert max(rewards) >= 5 or game != "SpaceInvaders"  # they are not clipped


@pytest.mark.slow
@pytest.mark.parametrize(("max_frames", "actions"), [(80, 20), (81, 21), (82, 21)])
def test_both_ways_cut_at_the_same_frame(max_frames: int, actions: int) -> None:
    """Within an action, too."""
    steps = 6 * (actions + 1)
    _, truncations, _ = compare("Pong", steps, noop_max=1, max_frames=max_frames)
    assert truncations == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "kwargs", "least"),
    [
        ("Breakout", {}, 20),
        ("Breakout", {"fire_reset": False}, 1),
        ("SpaceInvaders", {}, 3),  # has no FIRE to begin with, and no ball to wait for
        ("Breakout", {"max_frames": 103}, 4),
        ("Breakout", {"max_frames": 100}, 4),  # cut in the first step of a life
        ("Breakout", {"frame_skip": 3}, 10),
    ],
)
def test_both_ways_end_at_a_lost_life_and_play_on(
    game: str, kwargs: dict[str, Any], least: int
) -> None:
    lives, _, _ = compare(game, 700, noop_max=1, episodic_life=True, **kwargs)
    assert lives >= least


def played(env: Any, episodes: int) -> tuple[list[int], list[int], list[int]]:
    """(lives, frames of the game, reward) at the end of each episode; actions by chance."""
    rng = np.random.default_rng(3)
    lives: list[int] = []
    frames: list[int] = []
    rewards: list[int] = []
    env.reset(seed=5)
    while len(lives) < episodes:
        over, total = False, 0.0
        while not over:
            _, reward, terminated, truncated, info = env.step(rng.integers(env.action_space.n))
            total, over = total + reward, terminated or truncated
        lives.append(int(info["lives"]))
        frames.append(int(info["episode_frame_number"]))
        rewards.append(int(total))
        env.reset()
    return lives, frames, rewards


@pytest.mark.slow
def test_a_game_is_as_many_episodes_as_it_has_lives() -> None:
    """The game's own count is the oracle: it goes down, and its frames go up, until it is over."""
    config = EnvConfig("ALE/Breakout-v5", {"episodic_life": True, "noop_max": 1})
    lives, frames, rewards = played(make_env(config), 10)
    assert lives == [4, 3, 2, 1, 0] * 2
    for game in (frames[:5], frames[5:]):
        assert game == sorted(game) and game[0] >= 60
    assert frames[5] < frames[4]
    whole, _, _ = played(make_env(whole_games(config)), 2)
    assert whole == [0, 0] and any(rewards)
    assert whole_games(EnvConfig("CartPole-v1")) == EnvConfig("CartPole-v1")


@pytest.mark.slow
def test_a_score_is_that_of_a_whole_game(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EnvConfig] = []

    def remember(config: EnvConfig, where: Where) -> Any:
        made.append(config)
        return make_any(config, where)

    monkeypatch.setattr(evaluator, "make_any", remember)
    given = EnvConfig("ALE/Breakout-v5", {"episodic_life": True, "noop_max": 1})
    spaces = probe(given)
    policy = Policy(ModelConfig(kind="nature"), spaces, seed=0)
    with pytest.raises(evaluator.StoppedError):
        evaluator.play(policy, given, spaces, EvaluateConfig(episodes=1), stopped=lambda: True)
    assert made == [EnvConfig("ALE/Breakout-v5", {"noop_max": 1})]


@pytest.mark.slow
def test_a_seed_begins_a_new_game() -> None:
    env = make_env(EnvConfig("ALE/Breakout-v5", {"episodic_life": True, "noop_max": 1}))
    played(env, 2)  # three lives are left
    first = env.reset(seed=9)
    assert first[1]["lives"] == 5 and first[1]["episode_frame_number"] == 1
    again = env.reset()  # nothing was lost since
    assert again[1]["lives"] == 5 and again[1]["episode_frame_number"] == 1


@pytest.mark.slow
def test_the_next_life_of_one_is_not_that_of_the_others() -> None:
    """Six games side by side, each with as many dead steps as it has ends."""
    vector: Any = make_vector(EnvConfig("ALE/Breakout-v5", {"episodic_life": True}), 6)
    rng = np.random.default_rng(0)
    vector.reset(seed=1)
    before, over = np.full(6, 5), np.zeros(6, np.bool_)
    seen = set()
    for _ in range(400):
        _, rewards, ended, cut, info = vector.step(rng.integers(4, size=6))
        lives = info["lives"]
        assert not cut.any() and not rewards[over].any() and not ended[over].any()
        assert (lives[ended] == before[ended] - 1).all()
        assert (lives[~ended & ~over] == before[~ended & ~over]).all()
        new = over & (lives == 5)
        assert (before[new] == 0).all() and (lives[over & ~new] == before[over & ~new]).all()
        seen |= set(lives[ended].tolist())
        before, over = lives.copy(), ended.copy()
    vector.close()
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs",
    [
        {"fire_reset": False, "noop_max": 0},
        {"frame_skip": 3, "size": 42},
        {"frame_skip": 1},
        {"full_action_space": True},
        # Every action but the first is ignored, so the dice for it do not matter.
        {"repeat_action_probability": 1.0},
    ],
)
def test_both_ways_know_every_option(kwargs: dict[str, Any]) -> None:
    compare("Breakout", 60, **{"noop_max": 1, **kwargs})


@pytest.mark.slow
@pytest.mark.parametrize("fire", [False, True])
def test_both_ways_wait_the_same_at_the_start(fire: bool) -> None:
    """Each throws its own dice; the frames after the same wait are the same."""
    config = EnvConfig("ALE/Breakout-v5", {"fire_reset": fire})
    native: Any = make_vector(config, 6)
    reference: Any = make_env(config)
    frames, info = native.reset(seed=1)
    waits = info["episode_frame_number"]
    assert len(set(waits)) > 3
    for wait, frame in zip(waits, frames, strict=True):
        dice = reference.unwrapped.np_random = Dice(int(wait))
        mine, told = reference.reset()
        assert (dice.below, told["episode_frame_number"]) == (30, wait)
        np.testing.assert_array_equal(frame, mine)
    reference.unwrapped.np_random = Dice(0)
    assert reference.reset()[1]["episode_frame_number"] == fire
    native.close()


@pytest.mark.slow
def test_the_same_spaces_for_both_ways() -> None:
    for kwargs, leaf, actions in (
        ({}, FRAME, 4),
        ({"size": 42, "full_action_space": True}, Leaf("obs", "|u1", (42, 42)), 18),
    ):
        reference, native = both("Breakout", **kwargs)
        config = EnvConfig("ALE/Breakout-v5", kwargs)
        spaces = probe(config)
        assert spaces == spaces_of(reference, config) == spaces_of(native, config)
        assert (spaces.observation, spaces.action) == ((leaf,), discrete(actions))
        native.close()
    stacked = probe(EnvConfig("ALE/Breakout-v5", stack=4))
    assert stacked.observation[0].seen == (4, 84, 84)


def test_only_ales_vector_class_says_how_ales_resets() -> None:
    reference, native = both("Pong")
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "autoreset_mode" not in VectorEnv.metadata
    reference.close()
    native.close()


@pytest.mark.slow
def test_threads_are_for_the_native_way() -> None:
    reference, native = both("Pong", num_threads=2)
    assert native.reset(seed=1)[0].shape == (1, *reference.reset(seed=1)[0].shape)
    native.close()


def test_behind_its_module_a_game_is_raw() -> None:
    config = EnvConfig("ale_py:ALE/Pong-v5", {"frameskip": 2})
    assert probe(config).observation == (Leaf("obs", "|u1", (210, 160, 3)),)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"frameskip": 4}, "env.kwargs has no frameskip; it has frame_skip, size, noop_max"),
        ({"size": 0}, "set env.kwargs.size to a whole number from 1 up"),
        ({"noop_max": 1.5}, "set env.kwargs.noop_max to a whole number from 0 up"),
    ],
)
def test_wrong_options(kwargs: dict[str, Any], words: str) -> None:
    config = EnvConfig("ALE/Pong-v5", kwargs)
    for make in (make_env, lambda config: make_vector(config, 2)):
        with pytest.raises(EnvError, match=words):
            make(config)


def test_no_such_game() -> None:
    with pytest.raises(EnvError, match=r"Pongg.* doesn't exist .*Did you mean: `Pong`"):
        make_env(EnvConfig("ALE/Pongg-v5"))
    with pytest.raises(EnvError, match=r"Pongg.* doesn't exist"):
        make_vector(EnvConfig("ALE/Pongg-v5"), 2)


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("ale_py", "ALE/Pong-v5", "ale-py"),
        ("ale_py", "ale_py:ALE/Pong-v5", "ale-py"),
        ("cv2", "ALE/Pong-v5", "opencv"),
    ],
)
def test_a_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvError, match=rf"install {package}: pip install 'headrace\[atari\]'"):
        make_env(EnvConfig(name))


@pytest.mark.processes
def test_no_banner() -> None:
    """ALE prints it once a process."""
    code = """
from headrace.actors import evaluator
from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, make_vector
for make in (make_env, lambda config: make_vector(config, 1)):
    make(EnvConfig("ALE/Pong-v5")).close()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")
