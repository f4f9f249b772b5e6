"""Tests what explain says of a run: odd figures, faults that no recording has, bad input."""

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.launch.cli import main
from headrace.launch.config import run_file
from headrace.launch.explain import explain, figures, learning, symptoms, throughput
from headrace.launch.explain.figures import Figures
from tests.launch.explain.recorded_faults import RECORDINGS

COLUMNS = (
    "mean_return",
    "kl",
    "policy_loss",
    "value_loss",
    "explained_variance",
    "grad_norm",
    "rho_mean",
    "lag_mean",
    "lr",
    "time_wait",
    "time_forward",
)


def of(name: str = "cartpole", sets: tuple[str, ...] = (), **more: Any) -> Figures:
    line = {"entropy": 0.5, "trained_steps": 0.0, "mean_return": 20.0}
    lines = [{**line, "t": float(at), "trained_steps": 100.0 * at} for at in range(12)]
    given = {"lines": lines, "learner": {}, "samplers": {}, **more}
    return Figures(loaded(name, sets), **given)


@functools.cache
def loaded(name: str, sets: tuple[str, ...]) -> run_file.Run:
    return run_file.load(name, sets)


@pytest.mark.parametrize("name", ["cartpole", "cartpole-ppo", "cartpole-impala", "pendulum"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_figures_are_too_odd(name: str, data: st.DataObject) -> None:
    number = st.floats(-1e15, 1e15)
    line = st.fixed_dictionaries(
        {"t": number, "entropy": number, "trained_steps": number},
        optional=dict.fromkeys(COLUMNS, number),
    )
    shares = st.dictionaries(
        st.sampled_from(
            [
                *("wait", "forward", "checkpoint", "publish", "others"),
                *("wait_credit", "wait_env", "network"),
            ]
        ),
        st.floats(0, 2),
    )
    found = of(
        name,
        lines=data.draw(st.lists(line, min_size=1, max_size=20)),
        learner=data.draw(shares),
        samplers=data.draw(shares),
        outcomes={name: data.draw(st.floats(0, 1e9)) for name in ("trained", "stale")},
        cores=data.draw(st.integers(0, 1024)),
        cores_busy=data.draw(st.floats(0, 2048)),
        line_s=data.draw(st.floats(0, 100)),
        rate=data.draw(st.floats(0, 1e9)),
        solved=data.draw(st.booleans()),
        nonfinite=data.draw(st.integers(0, 10)),
    )
    for one in (*learning.find(found), *throughput.find(found), *symptoms.find(found)):
        assert one.words() and "nan" not in one.words()
        assert one.gain is None or math.isfinite(one.gain)
        assert one.sets or one.advice


def test_stale_unrolls_and_steps_that_are_not_finite_come_first() -> None:
    found = learning.find(of(nonfinite=3, outcomes={"trained": 90.0, "stale": 10.0}))
    assert [one.name for one in found] == ["not finite", "stale"]
    assert "10 % of the unrolls" in found[1].what
    assert found[1].sets == ("pacing.max_lag_hard=128",)
    assert not learning.find(of(outcomes={"trained": 96.0, "stale": 4.0}))


def test_a_lag_that_max_lag_cannot_lower_gets_advice_instead_of_what_is_set_already() -> None:
    lines = [
        {"t": float(at), "trained_steps": 0.0, "entropy": 0.5, "lag_mean": 30.0} for at in range(9)
    ]
    (found,) = learning.find(of(lines=lines))
    assert found.name == "lag" and not found.sets and "unroll.length" in found.words()
    (found,) = learning.find(of(sets=("pacing.max_lag=32",), lines=lines))
    assert found.sets == ("pacing.max_lag=4",)


def test_nothing_is_said_against_the_default_of_an_algorithm() -> None:
    """The same figures, and a setting that somebody chose."""
    waits: Any = {"learner": {"wait": 0.5, "forward": 0.5}, "samplers": {"wait_credit": 0.5}}
    busy: Any = {"learner": {"forward": 1.0}, "samplers": {"wait_credit": 0.9}}
    acts: Any = {"learner": {"wait": 0.9, "forward": 0.1}, "samplers": {"network": 0.9}}

    def named(name: str, *sets: str, **more: Any) -> list[str]:
        return [
            one.name for one in throughput.find(of(name, sets, cores=2, cores_busy=1.0, **more))
        ]

    assert not named("cartpole-ppo", **waits)
    assert not named("cartpole", **waits)
    assert named("cartpole", "pacing.max_lag=0", **waits) == ["pacing"]
    bare = ("env.id=CartPole-v1", "algorithm.name=appo")
    assert not named("bare", *bare, **busy)
    assert named("bare", *bare, "algorithm.uses=16", **busy) == ["learner"]
    assert not named("bare", *bare, "actor.count=2", "actor.groups=1", **acts)
    one = ("actor.count=2", "actor.groups=1", "unroll.envs=1")
    assert named("bare", *bare, *one, **acts) == ["acting"]


def test_a_learner_that_is_busy_with_others_wants_a_process_of_its_own() -> None:
    busy: Any = {"learner": {"others": 0.6, "forward": 0.4}, "samplers": {"wait_credit": 0.9}}
    together = ("learner.together=true",)
    (found,) = throughput.find(of("cartpole", together, cores=4, cores_busy=2.0, **busy))
    assert found.sets == ("learner.together=false",) and "60 % with other networks" in found.what
    (by_hand,) = throughput.find(of("cartpole", cores=4, cores_busy=2.0, **busy))
    assert not by_hand.sets and "; start a learner for each run (about" in by_hand.words()


def test_a_large_step_is_judged_by_how_often_a_batch_is_used() -> None:
    lines = [
        {"t": float(at), "trained_steps": 0.0, "entropy": 0.5, "kl": 0.15, "mean_return": 1.0}
        for at in range(9)
    ]

    def named(*sets: str) -> list[str]:
        return [one.name for one in learning.find(of("cartpole", sets, lines=lines))]

    impala = ("algorithm.name=impala", "algorithm.replay_share=0.0")
    for sets in ((), ("algorithm.name=ppo",), impala):
        assert named(*sets) == ["step size"]
    assert not named("algorithm.uses=8")
    assert not named("algorithm.name=impala", "algorithm.replay_share=0.75")


def test_an_environment_that_steps_fast_is_not_slow_whoever_takes_the_cores() -> None:
    plays: Any = {
        "learner": {"wait": 0.9, "forward": 0.1},
        "samplers": {"environment_on_loop": 0.95},
    }
    assert not throughput.find(
        of(**plays, cores=2, cores_busy=0.2, step_s=1e-4, sets=("actor.count=2",))
    )


def test_a_slow_environment_is_told_from_one_that_computes() -> None:
    plays: Any = {
        "learner": {"wait": 0.9, "forward": 0.1},
        "samplers": {"environment_on_loop": 0.95},
    }
    slow = throughput.find(of(**plays, cores=2, cores_busy=0.2))
    assert slow[0].name == "slow environment" and "actor.stepping=threads" in slow[0].sets
    busy = throughput.find(of(**plays, cores=2, cores_busy=2.0))
    assert [one.name for one in busy] == ["environment"] and busy[0].advice


def curve(*returns: float, steps: float, **columns: float) -> list[dict[str, float]]:
    """Lines in which returns move evenly from each value to the next, up to so many steps."""
    apart = 100 // (len(returns) - 1)
    means = [
        before + (after - before) * at / apart
        for before, after in itertools.pairwise(returns)
        for at in range(apart)
    ]
    return [
        {
            "t": float(at),
            "trained_steps": steps * (at + 1) / len(means),
            "entropy": 0.5,
            "mean_return": mean,
            **columns,
        }
        for at, mean in enumerate(means)
    ]


@pytest.mark.parametrize(
    ("returns", "falls"),
    [
        ((20, 400, 100), True),
        ((-200, 250, -150), True),
        ((-1200, -200, -1000), True),
        ((20, 400, 390), False),
        ((25, 36, 26), False),  # little was learnt
        ((-1200, -1000, -1300), False),
        ((400, 300, 20), False),  # nothing was
        ((0.0, 0.9, 0.7), False),
    ],
)
def test_returns_that_fall_far_below_their_best(returns: tuple[float, ...], falls: bool) -> None:
    unending = ("stop.return=none", "stop.steps=500000", "learner.lr=0.001")
    found = learning.find(of(sets=unending, lines=curve(*returns, steps=3e5)))
    assert [one.name for one in found] == ["decays"] * falls
    if falls:
        assert found[0].sets == ("learner.lr=[[0, 0.001], [500000, 0.0]]",)
        assert "best/" in found[0].words()
        assert run_file.load("cartpole", found[0].sets).learner.lr == ((0, 0.001), (500000, 0.0))
    scheduled = learning.find(of(sets=("stop.return=none",), lines=curve(20, 400, 100, steps=3e5)))
    assert scheduled[0].advice and not scheduled[0].sets


def test_what_has_no_known_cause_is_said_last_with_advice() -> None:
    stuck = curve(20, 25, 21, steps=4e5, explained_variance=-0.5)
    slow: Any = {"learner": {"wait": 0.5, "forward": 0.5}, "samplers": {"wait_credit": 0.5}}
    sets = ("stop.return=none", "stop.steps=500000", "pacing.max_lag=0")
    found = explain.findings(of(sets=sets, lines=stuck, seconds=60.0, **slow))
    assert [one.name for one in found] == ["pacing", "values", "flat"]
    assert all(one.advice and not one.sets for one in found[1:])
    # Whatever has a known cause is enough.
    found = explain.findings(of(sets=sets, lines=stuck, seconds=60.0, nonfinite=1))
    assert [one.name for one in found] == ["not finite"]


@pytest.mark.parametrize(
    "lines",
    [
        curve(20, 25, 21, steps=9e4, explained_variance=-0.5),  # it has hardly begun
        curve(20, 500, 500, 500, steps=4e5, explained_variance=-1.0),  # constant returns
        curve(-21, -21, steps=4e5, explained_variance=0.0),  # nothing was found yet
        curve(-20.9, -20.4, steps=1.9e5, explained_variance=0.5),
        curve(-1200, -900, steps=4e5, explained_variance=-0.5),  # it rises
        curve(0.99, 1.0, steps=2e6, explained_variance=-1.0),  # it may have risen before
    ],
)
def test_of_runs_that_may_be_healthy_nothing_is_said_last(lines: list[dict[str, float]]) -> None:
    assert symptoms.find(of(sets=("stop.return=none",), lines=lines)) == []


def test_a_long_wire_is_told_from_too_little_credit() -> None:
    """CartPole over 100 ms of round trip, as it was measured: 512 steps in a batch, K = 2."""
    waits: Any = {
        "learner": {"wait": 0.77, "forward": 0.23},
        "samplers": {"wait_weights": 0.62, "wait_credit": 0.2},
    }
    more: Any = {**waits, "rate": 3500.0, "unroll_bytes_s": 1.9e5, "weights_bytes": 3.7e4}
    (found,) = throughput.find(of(line_s=0.231, **more))
    assert found.name == "wire" and found.sets == ("pacing.batch_unrolls=8",)
    assert "231 ms" in found.what and "82 %" in found.what and "0.19 MB a second" in found.what
    assert found.gain is not None and 3 < found.gain <= 4
    assert not throughput.find(of(line_s=0.015, **more)), "that is no line"
    # Environments in threads: the sampler waits for those that play.
    threads: Any = {
        "learner": {"wait": 0.98, "forward": 0.02},
        "samplers": {"wait_env": 0.84, "environment": 3.7, "wait_credit": 0.03},
        "rate": 400.0,
    }
    sets = ("actor.groups=8", "actor.stepping=threads", "unroll.length=10", "unroll.envs=1")
    pacing = ("pacing.max_lag=1", "pacing.batch_unrolls=8")
    (found,) = throughput.find(of(sets=(*sets, *pacing), line_s=0.215, **threads))
    assert found.name == "wire" and "54 %" in found.what
    assert not throughput.find(of(sets=(*sets, *pacing), line_s=0.001, **threads))


def test_the_remedy_is_written_as_a_run_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "new.toml"
    assert main(["explain", str(RECORDINGS / "clipped"), "--apply", str(to)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1. every gradient is cut") and f"headrace train {to}" in said
    given, changed = run_file.load(str(RECORDINGS / "clipped/run.toml")), run_file.load(str(to))
    assert given.learner.grad_clip == 1e-4 and changed.learner.grad_clip > 0.05
    assert "grad_clip" in to.read_text().splitlines()[0]


def test_where_there_is_nothing_to_set_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "new.toml"
    assert main(["explain", str(RECORDINGS / "healthy-ppo"), "--apply", str(to)]) == 0
    assert "is not written: there is nothing to set" in capsys.readouterr().out
    assert not to.exists()


@pytest.fixture
def young(tmp_path: Path) -> Path:
    """A run that has trained for a second."""
    (tmp_path / "run.toml").write_text(run_file.effective(run_file.load("cartpole")))
    line = {"t": 1.0, "trained_steps": 10, "entropy": 0.6}
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(line)}\n" + '{"t": 2, "torn')
    return tmp_path


def test_of_a_young_run_it_says_that_it_is_too_short(
    young: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(young)]) == 0
    assert capsys.readouterr().out.startswith("the run is too short to tell")


@pytest.mark.parametrize(
    ("trained", "said"), [(0, "nothing was trained"), (1, "the run is too short to tell")]
)
def test_a_run_that_hardly_trained_gets_no_diagnosis(
    trained: int, said: str, young: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was ended while its samplers began, or after one version: its time tells of starting."""
    if not trained:
        (young / "history.jsonl").write_text('{"t": 1, "trained_steps": 0}\n')
    summary = {
        "wall_s": 9.0,
        "first_train_s": 2.0 if trained else None,
        "phase_seconds": {"wait": 0.1, "checkpoint": 1.2},
        "sampler_seconds": {"all": 5.0, "wait_credit": 4.0},
    }
    (young / "summary.json").write_text(json.dumps(summary))
    assert main(["explain", str(young)]) == 0
    assert capsys.readouterr().out.startswith(said)
    assert explain.for_summary(figures.read(young)) == []


@pytest.mark.parametrize(
    "summary", ["", "[]", "{}", '{"sampler_seconds": 3, "machine": [], "unrolls": {"a": "b"}}']
)
def test_a_summary_that_is_none_is_one_that_is_missing(summary: str, young: Path) -> None:
    (young / "summary.json").write_text(summary)
    assert figures.read(young).samplers == {}


def test_bad_input_is_one_line(young: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["explain", *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "holds no run" in refused(str(young / "none"))
    away = str(young / "no" / "folder" / "new.toml")
    assert "cannot write" in refused(str(RECORDINGS / "clipped"), "--apply", away)
    (young / "history.jsonl").write_text('{"t": 1, "trained_steps": 0}\n')
    assert "no figures of training" in refused(str(young))
