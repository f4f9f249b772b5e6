"""Training at a forced lag: who played each batch, and what is refused."""

from unittest import mock

import pytest

from headrace.actors.rollout import Rollout
from headrace.launch import cli
from headrace.launch.bench.lag import lag
from headrace.launch.config import run_file
from headrace.launch.one_process.lagged_source import LaggedSource
from headrace.learner.models.build import build
from headrace.learner.weights import FlatWeights

SETS = ("unroll.length=4", "unroll.envs=2", "actor.count=2", "pacing.batch_unrolls=3")


def small(*sets: str) -> run_file.Run:
    return run_file.load("cartpole", (*SETS, "stop.steps=200", *sets))


@pytest.mark.parametrize("late", [0, 1, 3])
def test_every_batch_is_played_by_weights_exactly_so_many_versions_old(late: int) -> None:
    source = LaggedSource(small(), lag=late, seed=1)
    body = FlatWeights(build(small().model, source.spaces, seed=1)).dump()

    def train() -> None:
        trained = [0]
        for version in range(6):
            source.publish(version, body)
            batch = source.next(0.0)
            assert batch is not None and batch.room == 0
            assert batch.versions == [(max(0, version - late),) * 2] * 3
            assert source.acted == trained[max(0, version - late)]
            source.trained(batch, version=version + 1)
            trained.append(trained[-1] + batch.steps)

    source.serve(train)
    assert source.scores


def test_an_environment_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rollout, "count", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        lag.scores_of(small(), lag=0, seed=1)


@pytest.mark.parametrize("name", ["impala", "appo", "ppo"])
def test_a_run_ends_when_the_weights_that_act_had_their_steps_and_is_the_same_again(
    name: str,
) -> None:
    run = small(f"algorithm.name={name}")
    scores = lag.scores_of(run, lag=2, seed=3)
    assert scores and 0 < max(score.trained for score in scores) < 200 + 24
    assert scores == lag.scores_of(run, lag=2, seed=3)
    assert scores != lag.scores_of(run, lag=2, seed=4)


def test_its_parameters_come_first_and_one_json_line_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sets = [*SETS, "stop.steps=60"]
    figures = lag.bench(["cartpole", "1", "0", "2"], sets)
    assert [one["lag"] for one in figures] == [0, 2]
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("run cartpole") and last.startswith('{"bench": "lag"')


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "name the run"),
        (["cartpole", "0"], "0 seeds"),
        (["cartpole", "5", "-1"], "-1"),
        (["cartpole", "5", "eight"], "eight"),
        (["cartpole", "5", "1001"], "1001"),
        (["nowhere"], "nowhere is no shipped run"),
        (["cartpole", "--set", "stop.steps=none"], "--set stop.steps"),
    ],
)
def test_what_it_cannot_measure_is_refused_with_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "lag", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
