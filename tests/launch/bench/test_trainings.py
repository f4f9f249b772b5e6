"""Throughput beside the sum of the parts: the run that is measured, and the figures made of it."""

import json
from typing import Any

import pytest

from headrace.launch.bench import part_costs, trainings
from headrace.launch.config.run_file import Run
from headrace.launch.process import runtime

SUMMARY = {
    "steps_per_s": 1200.0,
    "trained_steps_per_s": 900.0,
    "unrolls": {"generated": 200, "trained": 198},
    "wire_bytes_per_step": 140.5,
    "mean_return": 3.0,
    "trained_steps": 5000,
    "lag": {"mean": 1.0},
    "peak_rss_mb": 800.0,
    "peak_rss_sum_mb": 1500.0,
}


@pytest.mark.parametrize(
    ("kind", "bench", "steps"), [("make", "throughput", 4096), ("atari", "atari", 640)]
)
def test_the_run_is_measured_as_its_parts_are(
    kind: str,
    bench: str,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained: list[tuple[str, list[str], tuple[str, ...]]] = []

    def costs(run: Run) -> dict[str, float]:
        assert run.unroll.length * run.unroll.envs * run.pacing.batch_unrolls == steps
        assert run.algorithm.name == "impala"
        return {"environment": 0.001, "inference": 0.0004, "training": 0.0006}

    def train(*given: Any) -> dict[str, Any]:
        trained.append(given)
        return SUMMARY

    monkeypatch.setattr(runtime, "cores", lambda: 2)
    monkeypatch.setattr(part_costs, "costs", costs)
    monkeypatch.setattr(trainings, "train", train)
    figures = trainings.throughput(kind)
    ((run, options, sets),) = trained
    assert (figures["run"], figures["sum_of_parts_per_s"], figures["ratio"]) == (run, 1000.0, 0.9)
    assert figures["trained_over_generated"] == 0.99
    assert options[0] == "--stop-seconds" and "algorithm.name=impala" in sets
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bench"] == bench
