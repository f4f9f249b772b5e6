"""summary.json from reports and journals written by hand."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config.run_file import Run
from headrace.launch.config.run_sections import RunSection, StopSection
from headrace.launch.local import summary
from headrace.launch.local.part_costs import PartCosts
from headrace.launch.process.memory_use import ProcessTree
from headrace.learner.batches.policy_returns import PolicyReturns
from headrace.learner.batches.unroll_ends import EpisodeEnds
from tests.launch.explain.recorded_faults import RECORDINGS
from tests.system.harness import disks

RUN = Run(run=RunSection(name="mine", seed=7), stop=StopSection(return_=475.0))
LEARNER = {
    "stop_reason": "return",
    "first_train_s": 1.23456,
    "trained_steps": 24_000,
    "learner_steps": 50,
    "version": 51,
    "trained_steps_per_s": 12_345.67,
    "episodes": 321,
    "mean_return": 475.12345,
    "mean_length": 470.98765,
    "metrics": {"won": 0.5},
    "solved_at_s": 6.54321,
    "solved_at_steps": 23_999,
    "lag": {"mean": 1.5, "p95": 3.0, "max": 4},
    "nonfinite": 0,
}
# One sampler, incarnation 5, generated eight unrolls of 100 steps in two streams: four were trained
# (one of them twice, one without its acknowledgement having come back), one each was stale,
# rejected and abandoned, and nobody has said how (5, 1, 3) ended.
JOURNALS = {
    "actor-5.log": """\
        G 5 0 0 100
        G 5 0 1 100
        G 5 0 2 100
        G 5 0 3 100
        A 5 0 0 2 trained
        A 5 0 2 3 stale
        G 5 1 0 100
        G 5 1 1 100
        G 5 1 2 100
        G 5 1 3 100
        A 5 1 0 1 rejected
        X 5 1 1 2
        """,
    "learner-9.log": """\
        T 5 0 0 1
        T 5 0 1 1
        T 5 0 3 2
        """,
    "learner-10.log": """\
        T 5 0 1 2
        T 5 1 2 3
        T 5 1 1""",  # killed while it wrote: this line does not count
}


def give(out: Path, **reports: Any) -> None:
    for name, report in reports.items():
        (out / f"{name}.json").write_text(json.dumps(report))


def journals(out: Path) -> None:
    (out / "ledger").mkdir()
    for name, text in JOURNALS.items():
        lines = [line.strip() for line in text.split("\n")]
        (out / "ledger" / name).write_text("\n".join(lines))


def write(out: Path, sampled: list[tuple[float, float]] | None = None) -> dict[str, Any]:
    result = summary.write(
        RUN,
        out,
        began=time.monotonic() - 8.0,
        tree=ProcessTree(),
        costs=PartCosts(),
        sampled=sampled or [],
    )
    assert json.loads((out / "summary.json").read_text()) == result
    return result


def test_a_run_that_reached_its_goal(tmp_path: Path) -> None:
    give(tmp_path, learner=LEARNER, broker={"duplicates": 3, "unroll_bytes": 16_400})
    journals(tmp_path)
    result = write(tmp_path, [(0.0, 0.0), (1.0, 500.0), (5.0, 4500.0)])
    assert result.pop("wall_s") == pytest.approx(8.0, abs=1.0)
    for measured in ("cpu_s", "peak_rss_mb", "peak_rss_sum_mb"):
        assert result.pop(measured) >= 0
    assert result == {
        "run": "mine",
        "env": "CartPole-v1",
        "algorithm": "impala",
        "seed": 7,
        "stop_reason": "return",
        "diagnosis": None,
        "first_train_s": 1.235,
        "env_steps": 800,
        "trained_steps": 24_000,
        "learner_steps": 50,
        "version": 51,
        "steps_per_s": 1000.0,  # two looks are all there is
        "trained_steps_per_s": 12_345.7,
        "episodes": 321,
        "mean_return": 475.123,
        "mean_length": 470.988,
        "metrics": {"won": 0.5},
        "population": None,
        "solved_at_s": 6.543,
        "solved_at_steps": 23_999,
        "evaluation": None,
        "lag": {"mean": 1.5, "p95": 3.0, "max": 4},
        "unrolls": {
            "generated": 8,
            "trained": 4,
            "stale": 1,
            "shed": 0,
            "rejected": 1,
            "poison": 0,
            "abandoned": 1,
            "duplicate": 3,
            "in_flight": 1,
        },
        "trained_quarters": [0.125, 0.125, 0.375, 0.375],
        "trained_twice": 1,
        "unaccounted": 0,
        "rolled_back": 0,
        "nonfinite_steps": 0,
        "costs": None,
        "phase_seconds": {},
        "sampler_seconds": {},
        "league": [],
        "machine": {},
        "explained_variance": None,
        "explain": [],
        "wire_bytes_per_step": 20.5,
    }


def test_where_the_samplers_time_went_is_what_the_broker_added_up(tmp_path: Path) -> None:
    give(tmp_path, broker={"samplers": {"wall_s": 9.87654, "env_s": 4.0, "wait_credit_s": 2.0}})
    assert write(tmp_path)["sampler_seconds"] == {
        "all": 9.877,
        "environment": 4.0,
        "environment_on_loop": 0.0,
        "network": 0.0,
        "wait_credit": 2.0,
        "wait_weights": 0.0,
        "wait_env": 0.0,
        "wait_gather": 0.0,
    }


def test_a_run_that_was_stopped_before_anything_happened(tmp_path: Path) -> None:
    result = write(tmp_path)
    assert result["stop_reason"] == "stopped"
    assert set(result["unrolls"].values()) == {0}
    for unknown in ("first_train_s", "mean_return", "solved_at_s", "wire_bytes_per_step"):
        assert result[unknown] is None
    assert not (tmp_path / "curve.png").exists()
    lines = summary.words(result, tmp_path, RUN.stop).splitlines()
    assert lines[0].startswith("stopped: ")
    assert "checkpoint  none" in lines
    assert "curve       none" in lines


@pytest.mark.parametrize("torn", ["", '{"stop_reason": "ret', "[1, 2]"])
def test_a_report_that_was_torn_by_a_kill_costs_only_itself(tmp_path: Path, torn: str) -> None:
    give(tmp_path, broker={"unroll_bytes": 16_000})
    (tmp_path / "learner.json").write_text(torn)
    journals(tmp_path)
    result = write(tmp_path)
    assert result["stop_reason"] == "stopped"
    assert result["wire_bytes_per_step"] == 20.0


def test_steps_per_second_leave_the_warm_up_out(tmp_path: Path) -> None:
    # Nothing for 5 s of start-up, slow up to 7 s, then 1000 a second; a quarter of 5..13 is 2 s.
    marks = [
        (0.0, 0.0),
        (4.9, 0.0),
        (5.0, 10.0),
        (6.0, 20.0),
        (7.0, 50.0),
        (10.0, 3050.0),
        (13.0, 6050.0),
    ]
    assert write(tmp_path, marks)["steps_per_s"] == 1000.0


def test_two_looks_give_a_rate(tmp_path: Path) -> None:
    assert write(tmp_path, [(0.0, 0.0), (1.0, 5.0), (3.0, 205.0)])["steps_per_s"] == 100.0


@pytest.mark.parametrize("marks", [[], [(0.0, 0.0)], [(1.0, 5.0)], [(1.0, 5.0), (1.0, 9.0)]])
def test_too_few_looks_give_no_rate(tmp_path: Path, marks: list[tuple[float, float]]) -> None:
    assert write(tmp_path, marks)["steps_per_s"] == 0.0


@pytest.mark.slow
def test_the_curve_is_drawn_and_everything_is_where_the_last_lines_say(tmp_path: Path) -> None:
    entries = [
        {"trained_steps": 0, "mean_return": None},
        {"trained_steps": 1000, "mean_return": 20.0},
        {"trained_steps": 2000, "mean_return": 475.0},
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "history.jsonl").write_text(text + '{"trained_steps": 30')
    for name in ("000000000009", "000000000120", "000000000120.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    give(tmp_path, learner=LEARNER)
    journals(tmp_path)
    result = write(tmp_path)
    assert (tmp_path / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    first, measured, unrolls, stale, rejected, abandoned, *where = summary.words(
        result, tmp_path, RUN.stop
    ).splitlines()
    assert measured == "metrics: won 0.5"
    assert first.startswith("solved: return 475.123 after 24,000 steps, ")
    assert first.endswith("(12,346 trained steps/s)")
    assert unrolls == (
        "unrolls: generated 8, trained 4, stale 1, rejected 1, abandoned 1, in_flight 1"
    )
    # What is no number of trained ones is explained where it stands, and nothing else.
    assert stale == "  stale: waited too long for their turn (pacing.max_lag_hard)"
    assert rejected.startswith("  rejected: the learner could not use them")
    assert abandoned.startswith("  abandoned: left unused when their sampler ended")
    assert where == [
        f"checkpoint  {tmp_path / 'checkpoints' / '000000000120'}",
        f"summary     {tmp_path / 'summary.json'}",
        f"curve       {tmp_path / 'curve.png'}",
    ]


def evaluation(version: int, mean: float, half: float | None = 2.0) -> dict[str, Any]:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {
        "version": version,
        "trained_steps": None,
        "episodes": 20,
        "mean": mean,
        "low": low,
        "high": high,
    }


def test_evaluations_are_summed_up(tmp_path: Path) -> None:
    """The best of equal ones is the newer: its weights are the ones that were kept."""
    told = [evaluation(3, 10.0), evaluation(40, 30.0), evaluation(50, 30.0), evaluation(60, 29.0)]
    text = "".join(json.dumps(entry) + "\n" for entry in told)
    (tmp_path / "evaluations.jsonl").write_text(text + '{"version": 7')
    give(tmp_path, learner=LEARNER)
    result = write(tmp_path)
    assert result["evaluation"] == {"last": told[3], "best": told[2]}
    lines = summary.words(result, tmp_path, RUN.stop).splitlines()
    assert "evaluation: best return 30.0 (28.0 to 32.0), 20 episodes of version 50" in lines
    assert "best        not kept" in lines
    (tmp_path / "best" / "000000000050").mkdir(parents=True)
    assert f"best        {tmp_path / 'best' / '000000000050'}" in summary.words(
        result, tmp_path, RUN.stop
    )


def test_one_episode_alone_has_no_interval(tmp_path: Path) -> None:
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation(3, 10.0, None)) + "\n")
    words = summary.words(write(tmp_path), tmp_path, RUN.stop)
    assert "evaluation: best return 10.0, 20 episodes of version 3" in words


@pytest.mark.parametrize("reason", ["return", "steps", "seconds", "stopped", "failed", "diverged"])
def test_every_way_to_end_has_its_words(tmp_path: Path, reason: str) -> None:
    give(tmp_path, learner={**LEARNER, "stop_reason": reason})
    line = summary.words(write(tmp_path), tmp_path, RUN.stop).splitlines()[0]
    assert "return 475.123" in line


@pytest.mark.processes
def test_on_a_full_disk_no_half_summary_is_left(tmp_path: Path) -> None:
    """Nor one of 0 bytes; the run's other reports are written in the same way."""
    with disks.disk(tmp_path / "disk", 256) as disk:
        give(disk, learner=LEARNER)
        (disk / "summary.json").write_text('{"run": "before"}')
        disks.fill(disk)
        with pytest.raises(OSError, match="No space left"):
            summary.write(
                RUN, disk, began=time.monotonic(), tree=ProcessTree(), costs=PartCosts(), sampled=()
            )
        assert json.loads((disk / "summary.json").read_text()) == {"run": "before"}


def test_a_broker_that_was_started_again_does_not_make_the_rate_negative(tmp_path: Path) -> None:
    sampled = [(float(at), steps) for at, steps in enumerate((1.0, 500.0, 1500.0, 200.0, 1200.0))]
    give(tmp_path, learner=LEARNER)
    result = summary.write(
        RUN, tmp_path, began=0.0, tree=ProcessTree(), costs=PartCosts(), sampled=sampled
    )
    assert result["steps_per_s"] == round((1000 + 0 + 1000) / 3, 1)


@pytest.mark.parametrize(("mean", "half", "decayed"), [(25.0, 2.0, True), (27.0, 2.0, False)])
def test_a_last_evaluation_well_below_the_best_is_said(
    tmp_path: Path, mean: float, half: float, decayed: bool
) -> None:
    give(tmp_path, learner=LEARNER)
    told = [evaluation(3, 30.0), evaluation(60, mean, half)]
    (tmp_path / "evaluations.jsonl").write_text("\n".join(map(json.dumps, told)) + "\n")
    words = summary.words(write(tmp_path), tmp_path, RUN.stop)
    assert (
        "evaluation is well below it: return 25.0 (23.0 to 27.0), version 60" in words
    ) is decayed


@pytest.mark.parametrize(
    ("metric", "goal", "mean", "reached"),
    [
        ("evaluation", 200.0, 258.0, True),
        ("evaluation", 260.0, 258.0, False),
        ("evaluation", 200.0, None, False),
        ("training", 240.0, 258.0, True),
        ("training", 250.0, 258.0, False),  # within its interval, so it may be chance
        ("training", 200.0, None, False),
        ("won", 200.0, 258.0, False),  # that is not the return
        ("evaluation.won", 0.9, 258.0, False),
        ("evaluation.won", 0.5, 258.0, True),
        ("evaluation.far", 0.5, 258.0, False),
    ],
)
def test_the_last_evaluation_may_reach_the_goal(
    metric: Any, goal: float, mean: float | None, reached: bool
) -> None:
    line = {"version": 7, "mean": mean, "low": 245.0, "metric.won": 0.5}
    evaluation = None if mean is None else {"last": line, "best": {**line, "low": None}}
    stop, result = StopSection(return_=goal, metric=metric), {"stop_reason": "steps"}
    assert summary.done_at_limit(stop, {**result, "evaluation": evaluation}) == reached
    assert summary.status({**result, "evaluation": evaluation}, stop) == (0 if reached else 3)


@pytest.mark.parametrize(("reason", "said"), [("steps", True), ("return", False)])
def test_the_last_lines_say_that_an_evaluation_reached_it(
    tmp_path: Path, reason: str, said: bool
) -> None:
    give(tmp_path, learner={**LEARNER, "stop_reason": reason})
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation(60, 480.0)) + "\n")
    words = summary.words(write(tmp_path), tmp_path, RUN.stop)
    assert ("stop.return = 475 is reached by the evaluation of version 60" in words) is said


@pytest.mark.parametrize("steps", [0, 5])
def test_without_a_goal_a_limit_is_one(steps: int) -> None:
    assert summary.done_at_limit(StopSection(), {"trained_steps": steps}) == bool(steps)


def test_what_held_it_back_stands_in_the_summary_and_in_the_last_lines(tmp_path: Path) -> None:
    history = (RECORDINGS / "rewards-large" / "history.jsonl").read_text()
    (tmp_path / "history.jsonl").write_text(history)
    give(tmp_path, learner={**LEARNER, "stop_reason": "steps"}, broker={})
    (tmp_path / "ledger").mkdir()
    result = write(tmp_path)
    assert result["explain"][0]["name"] == "reward scale"
    assert (
        result["explained_variance"] == json.loads(history.splitlines()[-1])["explained_variance"]
    )
    last = summary.words(result, tmp_path, RUN.stop).splitlines()[-len(result["explain"]) :]
    assert last[0].startswith("explain     the value loss is")


def test_a_population_names_its_best(tmp_path: Path) -> None:
    told = PolicyReturns(3)
    ended = ((0, 10.0, 5), (0, 30.0, 5))
    told.add([EpisodeEnds(1, 0, 1, 5, ended, players=(0, 2))])
    (tmp_path / "learner.json").write_text(json.dumps({"population": told.summary()}))
    words = summary.words(write(tmp_path), tmp_path, RUN.stop)
    assert (
        "population: policy 2 is the best of 2 that played, return 30; median 20, least 10" in words
    )
