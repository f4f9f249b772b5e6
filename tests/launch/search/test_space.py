"""Tests what a search varies: the ranges that ship, those of --vary, and what is refused."""

import optuna
import pytest

from headrace.launch.config import run_file
from headrace.launch.search import space
from headrace.launch.search.space import Range


@pytest.mark.parametrize("name", run_file.shipped())
def test_every_shipped_run_can_be_searched_as_it_is(name: str) -> None:
    ranges = space.read((), name, ())
    keys = [one.key for one in ranges]
    assert {"learner.lr", "algorithm.gamma"} <= set(keys) and len(set(keys)) == len(keys)
    own = space.nearest(ranges, run_file.load(name))
    run_file.load(name, [f"{one.key}={one.text(own[one.key])}" for one in ranges if one.key in own])


def test_what_ships_leaves_out_what_this_run_cannot_have() -> None:
    """Its batch has 16 columns, so no 32 minibatches."""
    (minibatches,) = space.read(("algorithm.minibatches",), "tmaze-ppo", ())
    assert minibatches.choices == ("1", "4", "8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learner.lr", Range("learner.lr", 1e-5, 1e-2)),
        ("learner.lr=1e-4..1e-3", Range("learner.lr", 1e-4, 1e-3)),
        ("actor.groups=1..4", Range("actor.groups", 1, 4, whole=True)),
        ("model.hidden=[64, 64],[128]", Range("model.hidden", choices=("[64, 64]", "[128]"))),
        ("learner.optimiser=adam,rmsprop", Range("learner.optimiser", choices=("adam", "rmsprop"))),
        ("env.kwargs={a=1},{a=2}", Range("env.kwargs", choices=("{a=1}", "{a=2}"))),
    ],
)
def test_vary_narrows_the_search_to_what_it_says(text: str, expected: Range) -> None:
    assert space.read((text,), "cartpole", ()) == [expected]


@pytest.mark.parametrize(
    ("vary", "complaint"),
    [
        (("learner.lrr=1..2",), "it is SECTION.KEY, or SECTION.KEY=LOW..HIGH"),
        (("lr",), "it is SECTION.KEY"),
        (("run.seed=1..5",), "[run] is not what a run learns by"),
        (("stop.steps=1,2",), "[stop] is not what a run learns by"),
        (("algorithm.rho_clip",), "write algorithm.rho_clip=LOW..HIGH"),
        (("learner.lr=1e-3..1e-4",), "goes from a smaller to a larger"),
        (("learner.lr=a..b",), "goes from a smaller to a larger"),
        (("learner.lr=1e-3",), "or two values or more"),
        (("learner.lr=1e-3,",), "or two values or more"),
        (("learner.lr=1e-3..11",), "--vary learner.lr=11: learner.lr is 11"),
        (("algorithm.gamma=0.9,1.5",), "--vary algorithm.gamma=1.5"),
        (("algorithm.epochs=0..4",), "algorithm.epochs is 0"),
        (("learner.lr", "learner.lr=1e-4..1e-3"), "learner.lr is given twice"),
    ],
)
def test_what_no_run_can_be_is_one_line(vary: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(run_file.ConfigError) as raised:
        space.read(vary, "cartpole", ())
    assert complaint in str(raised.value) and "\n" not in str(raised.value)


def test_a_run_s_own_settings_are_known_as_near_as_the_ranges_go() -> None:
    ranges = [
        Range("learner.lr", 1e-5, 1e-3),
        Range("algorithm.gamma", choices=("0.9", "0.98")),
        Range("algorithm.uses", 2, 4, whole=True),
        Range("algorithm.name", choices=("ppo", "appo")),
        Range("model.hidden", choices=("[8]", "[16]")),
    ]
    # The run's step size is a schedule that begins with 3e-3.
    assert space.nearest(ranges, run_file.load("cartpole")) == {
        "learner.lr": 1e-3,
        "algorithm.gamma": "0.98",
        "algorithm.uses": 2,
        "algorithm.name": "appo",
    }


def test_what_is_asked_lies_in_the_range_and_is_told_as_set_takes_it() -> None:
    ranges = space.read((), "cartpole-ppo", ())
    for seed in range(20):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        trial = study.ask()
        sets = [one.ask(trial) for one in ranges]
        run_file.load("cartpole-ppo", sets)
        for one, text in zip(ranges, sets, strict=True):
            value = text.partition("=")[2]
            assert value in one.choices if one.choices else one.low <= float(value) <= one.high
