"""Keys that do nothing are named, and no others."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config import run_file
from headrace.launch.config.unused_keys import fights, unused
from headrace.launch.process import runtime
from headrace.launch.roles import learner as learners


def said(*sets: str) -> list[str]:
    return list(unused(run_file.load("cartpole", ["model.obs_scale=[]", *sets])))


@pytest.mark.parametrize("name", run_file.shipped())
def test_a_shipped_run_has_none(name: str) -> None:
    assert list(unused(run_file.load(name))) == []


@pytest.mark.parametrize(
    ("sets", "key", "why"),
    [
        (
            ["algorithm.name=impala", "algorithm.target_interval=2", "algorithm.clip=0.1"],
            "algorithm.clip",
            'algorithm.name = "impala"',
        ),
        (["algorithm.epochs=9"], "algorithm.epochs", 'algorithm.name = "appo"'),
        (["algorithm.replay_share=0.5"], "algorithm.replay_share", 'algorithm.name = "appo"'),
        (
            ["algorithm.name=ppo", "algorithm.target_interval=2", "algorithm.rho_clip=0.5"],
            "algorithm.rho_clip",
            'algorithm.name = "ppo"',
        ),
        (
            [
                "algorithm.name=impala",
                "algorithm.target_interval=2",
                "algorithm.replay_share=0",
                "algorithm.replay_unrolls=9",
            ],
            "algorithm.replay_unrolls",
            "algorithm.replay_share = 0",
        ),
        (["algorithm.buffer_batches=4"], "algorithm.buffer_batches", "algorithm.uses = 1"),
        (["learner.momentum=0.9"], "learner.momentum", 'learner.optimiser = "adam"'),
        (["model.core_units=9"], "model.core_units", 'model.core = "none"'),
        (
            ["model.kind=a:b", "model.activation=relu"],
            "model.activation",
            "model.kind is neither auto nor mlp",
        ),
        (
            ["model.normalise_images=true"],
            "model.normalise_images",
            "model.kind is none of auto, nature and resnet",
        ),
    ],
)
def test_what_belongs_to_another_choice(sets: list[str], key: str, why: str) -> None:
    assert said(*sets) == [f"{key} is set, and does nothing: {why}"]


@pytest.mark.parametrize(
    "sets",
    [
        ["algorithm.clip=0.1", "algorithm.uses=2", "algorithm.buffer_batches=2"],
        [
            "algorithm.name=ppo",
            "algorithm.target_interval=2",
            "algorithm.kl_stop=0.1",
            "algorithm.value_clip=0.2",
            "algorithm.clip=0.3",
        ],
        [
            "algorithm.name=impala",
            "algorithm.target_interval=2",
            "algorithm.replay_share=0.5",
            "algorithm.replay_pick=recent",
            "algorithm.rho_clip=0.5",
        ],
        ["learner.optimiser=rmsprop", "learner.decay=0.9"],
        ["model.core=gru", "model.core_units=9", "model.activation=relu"],
    ],
)
def test_what_is_used(sets: list[str]) -> None:
    assert said(*sets) == []


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["algorithm.name=ppo", "pacing.max_lag=2"], "pacing.max_lag is above 1"),
        (["model.core=lstm", "unroll.length=8"], "unroll.length is below 16"),
        (["model.normalise_obs=true"], "model.obs_scale scales what"),
        (["model.normalise_returns=true", "algorithm.reward_scale=0.5"], "is undone by"),
    ],
)
def test_what_works_against_each_other(sets: list[str], words: str) -> None:
    assert [words in sentence for sentence in fights(run_file.load("cartpole", sets))] == [True]


@pytest.mark.parametrize("name", run_file.shipped())
def test_nothing_in_a_shipped_run_works_against_another(name: str) -> None:
    assert list(fights(run_file.load(name))) == []


@pytest.mark.parametrize("final", [True, False])
def test_a_learner_says_it_unless_headrace_train_has(
    final: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from headrace.launch import cli

    monkeypatch.setattr(learners, "learn", lambda *_: runtime.OK)
    words = ["learner", "--run", "cartpole", "--out", str(tmp_path), "--set", "learner.decay=0.5"]
    assert cli.main([*words, *["--final"] * final]) == 0
    assert capsys.readouterr().err.count("learner.decay is set, and does nothing") == (not final)
