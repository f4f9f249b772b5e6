"""Runs compared: the figures by their definitions, the groups, the table, and what is refused."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.launch.cli import main
from headrace.launch.comparison import compare_figures
from headrace.launch.config import run_file


def _kept(folder: Path, *, seed: int, final: float, sets: tuple[str, ...] = ()) -> str:
    folder.mkdir()
    run = run_file.load("cartpole", [f"run.seed={seed}", *sets])
    (folder / "run.toml").write_text(run_file.effective(run))
    lines = [{"t": 1.0, "trained_steps": n * 100, "mean_return": final * n / 4} for n in (1, 2, 4)]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3, 4], 2.5), ([9, 1, 2, 3, 100], 14 / 3), ([7], 7), ([0, 1, 2, 3, 4, 5, 6, 70], 3.5)],
)
def test_iqm_cuts_a_quarter_rounded_down_at_each_end(values: list[float], expected: float) -> None:
    assert compare_figures.iqm(values) == pytest.approx(expected)


def test_improvement_counts_ties_half() -> None:
    assert compare_figures.improvement([2, 3], [1, 2]) == pytest.approx(3.5 / 4)
    assert compare_figures.improvement([1], [1]) == 0.5


def test_figures_are_those_of_rliable() -> None:
    """rliable 1.2.0's aggregate_iqm and probability_of_improvement of these two groups."""
    ours, base = [9.0, 1.0, 2.0, 3.0, 100.0, 7.0, 7.0], [2.0, 3.0, 7.0, 8.0]
    assert compare_figures.iqm(ours) == pytest.approx(5.6)
    assert compare_figures.iqm(base) == pytest.approx(5.0)
    assert compare_figures.improvement(ours, base) == pytest.approx(0.5357142857142857)


def test_the_interval_of_the_mean_holds_it_and_one_run_has_none() -> None:
    found = compare_figures.bootstrap(compare_figures.mean, np.arange(100.0))
    assert found is not None
    # The normal approximation: 49.5 and 1.96 standard errors of 28.87 / 10.
    assert [float(v) for v in found] == pytest.approx([43.84, 55.16], abs=0.5)
    assert compare_figures.bootstrap(compare_figures.mean, np.array([3.0])) is None


def test_the_interval_of_the_iqm_is_that_of_all_resamples() -> None:
    """Four runs, of which the middle two count: 1 where three or more of the draws are the lowest,
    8 where they are the highest, each 13 of 256 resamples, more than 2.5 %."""
    found = compare_figures.bootstrap(compare_figures.iqm, np.array([1.0, 2.0, 4.0, 8.0]))
    assert found == pytest.approx((1.0, 8.0))


def test_the_interval_of_the_improvement_resamples_both_groups() -> None:
    # 1/2 - k/8 with k draws of the 1 in four: k = 4 in 0.4 % of resamples, k >= 3 in 5.1 %.
    ours, base = np.array([1.0, 2.0, 2.0, 2.0]), np.array([2.0, 2.0])
    assert compare_figures.bootstrap(compare_figures.improvement, ours, base) == pytest.approx(
        (1 / 8, 1 / 2)
    )
    # The other way round, of which only the second group varies.
    assert compare_figures.bootstrap(compare_figures.improvement, base, ours) == pytest.approx(
        (1 / 2, 7 / 8)
    )
    assert compare_figures.bootstrap(compare_figures.improvement, ours, base[:1]) is None


def test_intervals_are_those_of_rliable() -> None:
    """rliable 1.2.0's get_interval_estimates of the two groups above, by 20,000 and 5,000 draws."""
    ours, base = np.array([9.0, 1, 2, 3, 100, 7, 7]), np.array([2.0, 3, 7, 8])
    assert compare_figures.bootstrap(compare_figures.iqm, ours) == pytest.approx((2.6, 44.2))
    found = compare_figures.bootstrap(compare_figures.improvement, ours, base)
    assert found == pytest.approx((0.19642857, 0.85714286))


def test_a_missed_goal_counts_as_endless() -> None:
    assert compare_figures.median_steps([10, None, 30]) == 30
    assert compare_figures.median_steps([10, None]) is None


def test_curves_are_averaged_where_all_runs_reach() -> None:
    found = compare_figures.shared_curve([([0, 10], [0, 10]), ([2, 6], [4, 4])])
    assert found is not None
    steps, returns = found
    assert (steps[0], steps[-1]) == (2, 6)
    assert returns[:, -1].tolist() == [6, 4]
    assert compare_figures.shared_curve([([0, 1], [0, 1]), ([2, 3], [0, 1])]) is None


def test_groups_are_named_by_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ("algorithm.gamma=0.5",)
    elsewhere = ("broker.beat_s=0.5",)  # nothing that a policy learns by
    dirs = [
        _kept(tmp_path / f"a{n}", seed=n, final=100.0 * n, sets=sets)
        for n, sets in ((1, ()), (2, elsewhere))
    ]
    dirs.append(_kept(tmp_path / "b", seed=1, final=150.0, sets=slow))
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    assert main(["compare", *dirs, "--html", str(page), "--csv", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "algorithm.gamma=0.5" in printed
    assert "one run alone has no interval" in printed
    lines = table.read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].split(",")[1:3] == ["2", "150.0"]
    assert lines[2].endswith(",0.5,,")  # above one run, below the other; one run has no interval
    assert "<svg" in page.read_text()


def test_table_page_and_csv_have_the_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = [_kept(tmp_path / f"a{n}", seed=n, final=2.0) for n in (1, 2)]
    slow = ("algorithm.gamma=0.5",)
    dirs += [
        _kept(tmp_path / f"b{n}", seed=n, final=final, sets=slow)
        for n, final in enumerate((1.0, 2.0, 2.0, 2.0))
    ]
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    assert main(["compare", *dirs, "--html", str(page), "--csv", str(table)]) == 0
    for text in (capsys.readouterr().out, page.read_text()):
        # The interquartile mean is 1 where three draws of four are the 1: 13 of 256 resamples.
        assert "2.00 [1.00, 2.00]" in text
        assert "0.38 [0.12, 0.50]" in text
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert (rows[1]["iqm_low"], rows[1]["iqm_high"]) == ("1.0", "2.0")
    ends = (rows[1]["improvement_low"], rows[1]["improvement_high"])
    assert (rows[0]["improvement_low"], *ends) == ("", "0.125", "0.5")


def test_runs_are_compared_by_the_metric_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = [
        _kept(tmp_path / f"a{n}", seed=n, final=100.0, sets=('env.metrics=["won"]',))
        for n in (1, 2)
    ]
    for n, folder in enumerate(dirs):
        lines = [{"trained_steps": at * 100, "mean": 7.0 + n, "metric.won": n} for at in (1, 4)]
        lines.append({"mean": 99.0})  # of steps that nobody knows
        file = Path(folder) / "evaluations.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for metric, mean in (("evaluation", "7.50"), ("evaluation.won", "0.50"), ("return", "100.00")):
        page = tmp_path / "c.html"
        assert main(["compare", *dirs, "--metric", metric, "--html", str(page)]) == 0
        assert f"{mean} [" in capsys.readouterr().out and metric in page.read_text()
    for metric, said in (
        ("won", "has no won in its history.jsonl yet"),
        ("speed", "--metric speed: there are evaluation, return, won, evaluation.won"),
    ):
        assert main(["compare", *dirs, "--metric", metric]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("longer", "said"), [(400, False), (419, False), (425, True)])
def test_runs_of_unequal_length_are_told(
    longer: int, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = [_kept(tmp_path / f"a{n}", seed=n, final=4.0) for n in (1, 2)]
    with (tmp_path / "a1" / "history.jsonl").open("a") as history:
        history.write(json.dumps({"t": 2.0, "trained_steps": longer, "mean_return": 4.0}))
    assert main(["compare", *dirs]) == 0
    line = f"these runs end at 400 to {longer} steps: their last values are not of equal training"
    assert (line in capsys.readouterr().out) == said


def test_damaged_files_of_a_run_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    folder = _kept(tmp_path / "a", seed=1, final=8.0)
    with (tmp_path / "a" / "history.jsonl").open("a") as history:
        history.write('{"trained_steps": 500, "mean_return": "much"}\n{"trained')
    (tmp_path / "a" / "summary.json").write_text("[]")
    assert main(["compare", folder]) == 0


def test_bad_input_is_refused_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pole = _kept(tmp_path / "pole", seed=1, final=1.0)
    other = _kept(tmp_path / "other", seed=1, final=1.0, sets=('env.id="Acrobot-v1"',))
    fresh = _kept(tmp_path / "fresh", seed=1, final=1.0)
    (tmp_path / "fresh" / "history.jsonl").unlink()
    for given, said in (
        ([pole, other], "different environments"),
        ([fresh], "no return"),
        ([str(tmp_path)], str(tmp_path)),
    ):
        assert main(["compare", *given]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error
        assert "\n" not in error
