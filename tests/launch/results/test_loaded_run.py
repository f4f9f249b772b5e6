"""A run's folder read back, and a trained policy in somebody's own loop."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import headrace
from headrace.actors import evaluator
from headrace.actors.acting.trained_policy import TrainedPolicy
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.make import make_env
from headrace.launch.config import run_file as config
from headrace.launch.results import loaded_run
from headrace.learner.checkpoints import checkpoint
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete

BOX = Part(("aim",), "float32", (2,), (), (), (-2.0, 0.0), (2.0, 10.0))
CHOICE = Part(("move",), "int64", (), (3,), (1,))
PARTS = Spaces(
    (
        Leaf("arm.joints", "<f8", (2,)),
        Leaf("mode", "<i8", (), (5,)),
        Leaf("allowed", "|i1", (3,), mask=True),
    ),
    Action((BOX, CHOICE)),
)
PARTS_OBS = {"arm": {"joints": np.array([0.5, -1.0])}, "mode": 3}
MEMORY = ["model.core=lstm", "model.core_units=8", "model.previous=true"]


# ---- the folder ---------------------------------------------------------------------------------


def test_the_weights_are_those_that_were_saved(leave_run: Any, tmp_path: Path) -> None:
    model = leave_run(tmp_path, version=41)
    found = loaded_run.load(tmp_path)
    assert (found.version, found.path) == (41, tmp_path / "checkpoints" / "000000000041")
    assert found.spaces.action == discrete(2)
    saved = model.state_dict()
    assert all(torch.equal(saved[name], x) for name, x in found.model.state_dict().items())
    assert not any(p.requires_grad for p in found.model.parameters())


def test_the_best_goes_before_the_newest(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, version=9)
    leave_run(tmp_path, version=4, inside="best")
    assert loaded_run.load(tmp_path).version == 4
    assert loaded_run.load(tmp_path, "best").version == 4
    assert loaded_run.load(tmp_path, "newest").version == 9


@pytest.mark.parametrize(("evaluated", "told"), [(9, False), (20, True), (41, False)])
def test_a_best_of_long_ago_is_said(
    leave_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, evaluated: int, told: bool
) -> None:
    """Half of the versions and more came after the last evaluation."""
    leave_run(tmp_path, version=41 if evaluated > 9 else 18)
    leave_run(tmp_path, version=4, inside="best")
    lines = [json.dumps({"version": version}) for version in (4, evaluated)]
    (tmp_path / "evaluations.jsonl").write_text("\n".join(lines))
    assert loaded_run.load(tmp_path).version == 4
    words = f"went on from version {evaluated} to 41 without an evaluator: --checkpoint newest"
    assert (words in caplog.text) == told
    caplog.clear()
    loaded_run.load(tmp_path, "best")
    assert not caplog.text


def test_a_damaged_checkpoint_is_passed_over(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, version=4)
    leave_run(tmp_path, version=9)
    (tmp_path / "checkpoints" / "000000000009" / "model.safetensors").write_bytes(b"no")
    assert loaded_run.load(tmp_path).version == 4


def damage(folder: Path) -> None:
    for file in folder.glob("*/model.safetensors"):
        file.write_bytes(b"no")


def test_where_the_best_is_damaged_the_newest_is_taken(
    leave_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_run(tmp_path, version=9)
    leave_run(tmp_path, version=4, inside="best")
    damage(tmp_path / "best")
    assert loaded_run.load(tmp_path).version == 9
    said = caplog.messages[-1]
    assert said == f"every checkpoint in {tmp_path / 'best'} is damaged; the newest is taken"
    assert "is damaged; take the newest, --checkpoint newest" in refusal(tmp_path, "best")
    damage(tmp_path / "checkpoints")
    for which in (None, "newest"):
        line = refusal(tmp_path, which)
        assert f"every checkpoint in {tmp_path / 'checkpoints'} is damaged" in line
        assert "start anew" not in line


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("best", "only an evaluator writes one"),
        ("oldest", "it is best, newest or a version"),
        ("4", "of version 4; it has "),
    ],
)
def test_a_checkpoint_that_is_not_there(
    leave_run: Any, tmp_path: Path, which: str, words: str
) -> None:
    leave_run(tmp_path)
    assert words in refusal(tmp_path, which)


def test_folders_without_anything_trained(tmp_path: Path) -> None:
    assert "holds no run" in refusal(tmp_path / "nowhere")
    (tmp_path / "run.toml").write_text(config.effective(config.load("cartpole")))
    assert "nothing was trained" in refusal(tmp_path)


def test_a_checkpoint_of_another_model_or_run(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path)
    other = config.load("cartpole", ["model.obs_scale=[]", "model.hidden=[8]"])
    (tmp_path / "run.toml").write_text(config.effective(other))
    line = refusal(tmp_path)
    assert "another model or run: model.hidden: [64, 64] there" in line and "[8] here" in line


def test_spaces_that_are_not_those_of_the_run(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, spaces=msgspec.msgpack.decode(msgspec.msgpack.encode(PARTS)))
    assert "contradicts itself" in refusal(tmp_path)


def test_tensors_that_do_not_fit_the_network(leave_run: Any, tmp_path: Path) -> None:
    model = leave_run(tmp_path)
    state = checkpoint.load_latest(tmp_path / "checkpoints")
    assert state is not None
    tensors = {"model": {**model.state_dict(), "value_head.bias": torch.zeros(3)}}
    checkpoint.save(
        tmp_path / "checkpoints", step_version=8, tensors=tensors, state=state.state, keep=1
    )
    assert "does not fit the network" in refusal(tmp_path) and "value_head.bias" in refusal(
        tmp_path
    )


def test_a_checkpoint_of_an_older_release(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, spaces={})
    assert "older release" in refusal(tmp_path)
    leave_run(tmp_path, identity={})
    assert "does not say which run" in refusal(tmp_path)


def test_weights_that_are_no_numbers(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, change=lambda model: model.policy_head.bias.fill_(torch.nan))
    with pytest.raises(ValueError, match="not finite"):
        headrace.load_policy(tmp_path)


# ---- the policy ---------------------------------------------------------------------------------


def test_it_acts_on_one_observation(leave_run: Any, tmp_path: Path) -> None:
    model = leave_run(tmp_path)
    policy = headrace.load_policy(tmp_path)
    assert policy.version == 7 and "choice of 2" in repr(policy)
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    action, _ = policy.act(obs)
    logits = model.policy({"obs": torch.from_numpy(obs[None])})[0]
    assert type(action) is int and action == int(logits.argmax())
    assert policy.act(obs.astype(np.float64))[0] == policy.act(obs.tolist())[0] == action


def test_drawn_actions_follow_their_probabilities_and_their_seed(
    leave_run: Any, tmp_path: Path
) -> None:
    model = leave_run(tmp_path)
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    chance = float(model.policy({"obs": torch.from_numpy(obs[None])})[0].softmax(-1)[0, 1])

    def drawn() -> list[int]:
        policy = headrace.load_policy(tmp_path, seed=5)
        return [policy.act(obs, greedy=False)[0] for _ in range(400)]

    first = drawn()
    assert first == drawn()
    assert abs(np.mean(first) - chance) < 4 * (chance * (1 - chance) / 400) ** 0.5


def test_a_policy_and_its_like_draw_apart(leave_run: Any, tmp_path: Path) -> None:
    """As one that meets itself does, in a league or while it is scored."""
    leave_run(tmp_path)
    trained = loaded_run.load(tmp_path)
    policy = loaded_run.policy_of(trained, seed=5)
    like = loaded_run.named_player("evaluate.against", str(tmp_path), trained.spaces, 5)
    _, done = loaded_run.trained_policy(tmp_path, 5, lambda _: None)
    seen: dict[str, NDArray[Any]] = {"obs": np.zeros((100, 4), np.float32)}
    drawn = [player.act(seen, None)[0].tolist() for player in (policy, like, done)]
    assert drawn[0] != drawn[1] and drawn[0] != drawn[2] and drawn[1] != drawn[2]


def test_parts_in_and_parts_out(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, PARTS, change=lambda model: model.policy_head.weight.zero_())
    policy = headrace.load_policy(tmp_path)
    for forbidden, expected in (([1, 1, 0], 1), ([0, 1, 1], 2), ([0, 0, 1], 3)):
        action, _ = policy.act(PARTS_OBS, mask=forbidden)
        assert action["move"] == expected
    np.testing.assert_allclose(action["aim"], [0.0, 5.0])  # the middle of each range
    assert policy.act(PARTS_OBS, mask=np.array([False, True, False]))[0]["move"] == 2
    given = {**PARTS_OBS, "allowed": np.array([0, 1, 0], np.int8)}
    assert policy.act(given)[0]["move"] == 2
    assert policy.act(given, mask=[0, 0, 1])[0]["move"] == 3  # the argument goes first


def test_categories_count_as_the_environment_does(leave_run: Any, tmp_path: Path) -> None:
    spaces = Spaces((Leaf("obs", "<i8", (), (3,), (7,)),), Action((CHOICE,)))
    model = leave_run(tmp_path, spaces, change=lambda model: model.policy_head.weight.mul_(1e3))
    policy = headrace.load_policy(tmp_path)
    for value in (7, 8, 9):
        params = model.policy({"obs": torch.tensor([value - 7])})[0]
        assert policy.act(value)[0]["move"] == 1 + int(params.argmax())
    with pytest.raises(ValueError, match="obs: 6 was given, it must be 7 to below 10"):
        policy.act(6)


def test_memory_goes_from_step_to_step(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path, PARTS, MEMORY)
    policy = headrace.load_policy(tmp_path)
    mask = [1, 1, 1]
    first, after_one = policy.act(PARTS_OBS, mask=mask)
    second, after_two = policy.act(PARTS_OBS, after_one, mask, reward=0.5)
    assert not np.array_equal(first["aim"], second["aim"])
    # A state is not changed by being used; an episode that begins anew remembers nothing.
    again, _ = policy.act(PARTS_OBS, after_one, mask, reward=0.5)
    np.testing.assert_array_equal(second["aim"], again["aim"])
    anew, _ = policy.act(PARTS_OBS, mask=mask)
    np.testing.assert_array_equal(first["aim"], anew["aim"])
    other, _ = policy.act(PARTS_OBS, after_one, mask, reward=-0.5)
    assert not np.array_equal(second["aim"], other["aim"])
    with pytest.raises(ValueError, match="reward of the step before"):
        policy.act(PARTS_OBS, after_two, mask)


def test_frames_are_stacked(leave_run: Any, tmp_path: Path) -> None:
    spaces = Spaces((Leaf("obs", "|u1", (4, 4), stack=3),), discrete(3))
    model = leave_run(tmp_path, spaces)
    policy = headrace.load_policy(tmp_path)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (5, 4, 4), dtype=np.uint8)
    state = None
    for t, frame in enumerate(frames):
        action, state = policy.act(frame, state)
        seen = frames[[max(0, t - 2), max(0, t - 1), t]][None]
        assert action == int(model.policy({"obs": torch.from_numpy(seen)})[0].argmax())


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (np.zeros(3, np.float32), r"obs: float32\[3\] was given, .* trained on float32\[4\]"),
        (np.zeros((1, 4), np.float32), r"float32\[1, 4\] was given"),
        ({"camera": np.zeros(4)}, "the observation has camera"),
        (np.array(["a"] * 4), "was given, this policy was trained on"),
        ([[1.0], [1.0, 2.0], 3.0, 4.0], "obs: object"),
        (np.array([0, np.nan, 0, 0]), r"obs: nan at \[1\] was given, .* not a finite number"),
        ([0.0, 0.0, 0.0, 1e300], r"1e\+300 at \[3\] was given, .* finite number of float32"),
        ([0.0, 0.0, 0.0, 10**400], "obs: object"),
    ],
)
def test_wrong_observations(leave_run: Any, tmp_path: Path, obs: Any, words: str) -> None:
    leave_run(tmp_path)
    with pytest.raises(ValueError, match=words) as caught:
        headrace.load_policy(tmp_path).act(obs)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("obs", "mask", "words"),
    [
        ({"mode": 3}, [1, 1, 1], "has no arm.joints"),
        (PARTS_OBS, None, r"has no allowed, give it as act\(obs, state, mask=...\)"),
        ({**PARTS_OBS, "mode": 5}, [1, 1, 1], "mode: 5 was given, it must be 0 to below 5"),
        ({**PARTS_OBS, "mode": 2.5}, [1, 1, 1], "mode: float64"),
        ({**PARTS_OBS, "more": 1}, [1, 1, 1], "the observation has more"),
        ({**PARTS_OBS, "more": {}}, [1, 1, 1], "the observation has more"),
        ({**PARTS_OBS, "more": ()}, [1, 1, 1], "the observation has more"),
        ({}, [1, 1, 1], "the observation has no arm.joints"),
        (PARTS_OBS, [1, 1], r"allowed: int64\[2\]"),
        (PARTS_OBS, [1, 2, 1], r"allowed: 2 at \[1\] was given, a mask holds 0 and 1"),
        (PARTS_OBS, [1, 0, -1], r"allowed: -1 at \[2\] was given, a mask holds 0 and 1"),
        (PARTS_OBS, [0, 0, 0], "allows no value of choice 0 of 1"),
        (np.zeros(4), [1, 1, 1], "the observation has no parts"),
    ],
)
def test_wrong_parts(leave_run: Any, tmp_path: Path, obs: Any, mask: Any, words: str) -> None:
    leave_run(tmp_path, PARTS)
    with pytest.raises(ValueError, match=words):
        headrace.load_policy(tmp_path).act(obs, mask=mask)


def test_a_mask_or_a_state_of_another_policy(leave_run: Any, tmp_path: Path) -> None:
    leave_run(tmp_path / "a")
    leave_run(tmp_path / "b", sets=["model.core=gru", "model.core_units=8"])
    plain, recurrent = (headrace.load_policy(tmp_path / name) for name in "ab")
    _, state = plain.act(np.zeros(4))
    same_shapes = headrace.load_policy(tmp_path / "a")
    for other in (recurrent, same_shapes):
        with pytest.raises(ValueError, match="not of this policy"):
            other.act(np.zeros(4), state)
    _, state = plain.act(np.zeros(4), state)
    plain.act(np.zeros(4), state)
    with pytest.raises(ValueError, match=r"without env\.mask"):
        plain.act(np.zeros(4), mask=[1, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "reward",
    [
        float("nan"),
        -float("inf"),
        "1.0",
        b"1",
        np.zeros(1),
        [1.0],
        [[1], [1, 2]],
        10**400,
        1j,
        {},
        np.float32("inf"),
    ],
)
@pytest.mark.parametrize("sets", [[], MEMORY])
def test_wrong_rewards(leave_run: Any, tmp_path: Path, sets: list[str], reward: Any) -> None:
    leave_run(tmp_path, sets=sets)
    policy = headrace.load_policy(tmp_path)
    _, state = policy.act(np.zeros(4))
    with pytest.raises(ValueError, match=r"^reward: .* it must be one finite number$"):
        policy.act(np.zeros(4), state, reward=reward)


@pytest.mark.parametrize("reward", [1e300, 10**30, np.float64(7.0), True, np.array(2)])
def test_rewards_above_one_are_seen_as_one(leave_run: Any, tmp_path: Path, reward: Any) -> None:
    leave_run(tmp_path, PARTS, MEMORY)
    policy = headrace.load_policy(tmp_path)
    _, state = policy.act(PARTS_OBS, mask=[1, 1, 1])
    expected, _ = policy.act(PARTS_OBS, state, [1, 1, 1], reward=1.0)
    action, _ = policy.act(PARTS_OBS, state, [1, 1, 1], reward=reward)
    np.testing.assert_array_equal(action["aim"], expected["aim"])


@pytest.mark.slow
@pytest.mark.parametrize("sets", [[], MEMORY])
def test_an_episode_in_ones_own_loop_is_the_one_that_an_evaluator_plays(
    leave_run: Any, tmp_path: Path, sets: list[str]
) -> None:
    leave_run(tmp_path, sets=sets, seed=11)
    found = loaded_run.load(tmp_path)
    config = EnvConfig()
    how = EvaluateConfig(episodes=3, envs=2, seed=100)
    played = evaluator.play(loaded_run.policy_of(found, seed=0), config, found.spaces, how)
    policy = headrace.load_policy(tmp_path)
    assert [episode(policy, config, 100 + i) for i in range(3)] == played.lengths


def episode(policy: TrainedPolicy, config: EnvConfig, seed: int) -> int:
    env = make_env(config)
    obs, _ = env.reset(seed=seed)
    state, reward, steps, over = None, None, 0, False
    while not over:
        action, state = policy.act(obs, state, reward=reward)
        obs, gained, ended, cut, _ = env.step(action)
        reward, over, steps = float(gained), ended or cut, steps + 1
    env.close()
    return steps


def refusal(folder: Path, which: str | None = None) -> str:
    with pytest.raises(config.ConfigError) as caught:
        loaded_run.load(folder, which)
    assert "\n" not in str(caught.value)
    return str(caught.value)
