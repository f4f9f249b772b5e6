"""Tests a search from its command on, with fake trainings: what it starts, keeps and says."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.comparison import training
from headrace.launch.config import run_file, shared_run
from headrace.launch.process import logs, runtime
from headrace.launch.search import search
from tests.launch.search.fake_trainings import Fake

LR = ("--vary", "learner.lr=1e-5..1e-1")
SCORE = ("--metric", "return", "--set", "stop.steps=1000")


def hill(run: run_file.Run) -> dict[str, Any]:
    """The nearer to 1e-3, the better."""
    assert isinstance(run.learner.lr, float)
    away = abs(math.log10(run.learner.lr) + 3)
    return {"stop_reason": "steps", "mean_return": 100 - away, "trained_steps": 1000}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "start", lambda *_, **__: None)
    monkeypatch.setattr(search, "_LOOK_EVERY_S", 0.0)


def put(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> Fake:
    monkeypatch.setattr(training, "subprocess", fake)
    return fake


def run(out: Path, *words: str, trials: int = 12) -> int:
    given = ["search", "cartpole", "--set", "learner.lr=3e-3", "--out", str(out)]
    return main([*given, "--budget", "60s", "--trials", str(trials), *words])


def sets_of(words: list[str]) -> dict[str, str]:
    sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
    return dict(one.split("=", 1) for one in sets)


def test_it_finds_better_settings_and_keeps_the_best_as_a_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = put(monkeypatch, Fake(hill))
    assert run(tmp_path, *LR, *SCORE, "--parallel", "3", trials=30) == 0
    assert len(fake.started) == 30 and fake.most == 3
    first = sets_of(fake.started[0])
    assert first["learner.lr"] == "3e-3"  # the run as it is
    assert first["stop.return"] == "none" and first["run.seed"] == "1"
    best = run_file.load(str(tmp_path / "best.toml"))
    assert isinstance(best.learner.lr, float) and 5e-4 < best.learner.lr < 2e-3
    assert best.stop == run_file.load("cartpole", ["stop.steps=1000"]).stop
    assert f"headrace train {tmp_path / 'best.toml'}" in capsys.readouterr().out
    page = (tmp_path / "search.html").read_text()
    assert "<svg" in page and "trial-0029" in page and "learner.lr  100 %" in page


SECTION = """
[env]
id = "CartPole-v1"
[stop]
steps = 1000
[search]
vary = ["learner.lr=1e-4..1e-2"]
metric = "return"
seeds = [4, 8]
"""


def test_what_the_run_s_own_section_says_holds_unless_an_option_says_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SECTION)

    def planned(**given: Any) -> search.Plan:
        words: dict[str, Any] = {"sets": (), "vary": (), "metric": None, "seeds": (), "out": None}
        rest: dict[str, Any] = {"budget_s": 1.0, "most_trials": None, "parallel": 1}
        return search.plan(str(file), **{**words, **rest, **given})

    plan = planned()
    assert [one.key for one in plan.ranges] == ["learner.lr"]
    assert (plan.metric.name, [*plan.seeds]) == ("return", [4, 8])
    other = planned(vary=["algorithm.gamma=0.9,0.99"], metric="evaluation", seeds=[1])
    assert [one.key for one in other.ranges] == ["algorithm.gamma"]
    assert (other.metric.name, [*other.seeds]) == ("evaluation", [1])


def test_the_section_makes_no_other_run_of_it(tmp_path: Path) -> None:
    """A search, or a sweep, goes on though it was narrowed meanwhile."""
    file = tmp_path / "mine.toml"
    file.write_text(SECTION)
    before = run_file.load(str(file))
    (tmp_path / "run.toml").write_text(run_file.effective(before))
    now = run_file.load(str(file), ['search.vary=["algorithm.gamma=0.9,0.99"]'])
    assert training.difference(tmp_path, now) is None
    assert shared_run.for_peers(before) == shared_run.for_peers(now)


@pytest.mark.parametrize(("score", "without"), [("return", True), ("evaluation", False)])
def test_an_evaluator_that_nothing_asks_for_is_not_started(
    score: str, without: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = put(monkeypatch, Fake(hill))
    assert run(tmp_path, *LR, "--metric", score, "--set", "stop.steps=9", trials=1) in (0, 1)
    assert ("--no-evaluate" in fake.started[0]) == without


def test_the_same_command_goes_on_until_the_trials_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = put(monkeypatch, Fake(hill))
    assert run(tmp_path, *LR, *SCORE, trials=4) == 0
    assert run(tmp_path, *LR, *SCORE, trials=4) == 0
    assert len(fake.started) == 4
    assert run(tmp_path, *LR, *SCORE, trials=6) == 0
    assert len({words[words.index("--out") + 1] for words in fake.started}) == 6


def test_a_trial_is_trained_with_every_seed_and_has_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def by_seed(run: run_file.Run) -> dict[str, Any]:
        return {**hill(run), "mean_return": float(run.run.seed)}

    caplog.set_level("INFO")
    fake = put(monkeypatch, Fake(by_seed))
    assert run(tmp_path, *LR, *SCORE, "--seeds", "4,8", trials=2) == 0
    seeds = [sets_of(words)["run.seed"] for words in fake.started]
    assert seeds == ["4", "8", "4", "8"]
    assert "trial 0 has 6" in caplog.text


def test_what_takes_too_long_is_given_up_and_what_never_gets_there_is_told_by_its_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the run's own step size solves it, in 4 s; others go on for ever."""

    def own_only(run: run_file.Run) -> dict[str, Any]:
        if run.learner.lr == 3e-3:
            return {"stop_reason": "return", "solved_at_s": 4.0, "mean_return": 480.0, "t": 4.0}
        return {"t": 6.5, "mean_return": 200.0}

    caplog.set_level("INFO")
    put(monkeypatch, Fake(own_only))
    assert run(tmp_path, *LR, "--metric", "time_to_return", trials=3) == 0
    assert "trial 0 has 4 s" in caplog.text
    assert caplog.text.count("given up after 6 s, 275 below the goal") == 2


def test_scores_that_are_worse_on_the_way_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first four end; the others are at 300 steps, and worse than these were there."""
    begun: list[float] = []

    def falling(run: run_file.Run) -> dict[str, Any]:
        assert isinstance(run.learner.lr, float)
        begun.extend([] if run.learner.lr in begun else [run.learner.lr])
        at = begun.index(run.learner.lr)
        line = {"trained_steps": 300, "mean_return": 10.0 - at}
        return line if at >= 4 else {**line, "stop_reason": "steps"}

    caplog.set_level("INFO")
    put(monkeypatch, Fake(falling, looks=2))
    assert run(tmp_path, *LR, *SCORE, trials=6) == 0
    assert caplog.text.count("given up at 250 steps with") == 2


@pytest.mark.slow
def test_what_was_given_up_counts_too_so_that_half_of_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Among the better ones alone, the median would rise until hardly any went on."""
    begun: list[float] = []
    scores = random.Random(1).sample(range(60), 60)

    def in_no_order(run: run_file.Run) -> dict[str, Any]:
        assert isinstance(run.learner.lr, float)
        begun.extend([] if run.learner.lr in begun else [run.learner.lr])
        score = scores[begun.index(run.learner.lr)]
        return {"trained_steps": 300, "mean_return": score, "stop_reason": "steps"}

    caplog.set_level("INFO")
    put(monkeypatch, Fake(in_no_order, looks=2))
    assert run(tmp_path, *LR, *SCORE, trials=60) == 0
    assert len(begun) == 60
    assert 25 <= caplog.text.count("given up at 250 steps with") <= 35


def test_three_failures_in_a_row_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = put(monkeypatch, Fake(lambda _: {"stop_reason": "failed"}))
    assert run(tmp_path, *LR, *SCORE) == 1
    assert len(fake.started) == 3
    assert "trial-0000/seed-1.log" in caplog.text and "3 trials failed in a row" in caplog.text
    assert not (tmp_path / "best.toml").exists()


def test_a_request_to_stop_ends_what_trains_and_the_next_search_begins_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Asked:
        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            return self.looks > 5

    fake = put(monkeypatch, Fake(lambda _: {}))
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "StopRequested", Asked)
        assert run(tmp_path, *LR, *SCORE) == 3
    assert len(fake.started) == 1 and fake.now == 0
    assert "the same command goes on" in caplog.text
    fake.brings = hill
    assert run(tmp_path, *LR, *SCORE, trials=1) == 0
    again = fake.started[1]
    assert sets_of(again) == sets_of(fake.started[0]) and "--resume" in again
    assert again[again.index("--out") + 1] == fake.started[0][again.index("--out") + 1]


def test_a_combination_that_no_run_can_have_is_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end is possible alone: max_lag_hard must be above max_lag."""
    vary = ("--vary", "pacing.max_lag=1,9", "--vary", "pacing.max_lag_hard=4,16")
    fake = put(monkeypatch, Fake(lambda _: {"stop_reason": "steps", "mean_return": 1.0}))
    sets = ("--set", "pacing.max_lag=1", "--set", "pacing.max_lag_hard=16")
    assert run(tmp_path, *vary, *SCORE, *sets, trials=8) == 0
    for words in fake.started:
        found = sets_of(words)
        assert int(found["pacing.max_lag_hard"]) > int(found["pacing.max_lag"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--metric", "speed"), "--metric speed: there are evaluation"),
        (("--vary", "learner.lr=0..1"), "learner.lr is 0"),
        (("--seeds", "5..1"), "--seeds 5..1"),
        (("--population", "1"), "it takes two members"),
        (("--population", "4", "--metric", "time_to_return"), "is of whole runs"),
        (("--population", "4", "--vary", "unroll.length=8,16"), "may change"),
        (("--population", "4", "--metric", "return"), "--trials: a population ends by"),
        (("--population", "4", "--seeds", "1..2"), "a seed of its own"),
        (("--budget", "2"), "'2' is no time"),
        (("--budget", "0s"), "'0s' is no time"),
        (("--budget", "1d"), "'1d' is no time"),
        (("--every", "0"), "0 is not between"),
    ],
)
def test_what_it_cannot_search_is_one_line_before_anything_starts(
    words: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = put(monkeypatch, Fake(hill))
    try:
        status = run(tmp_path, *words)
    except SystemExit as ended:  # of the parser
        status = int(ended.code or 0)
    said = capsys.readouterr().err
    assert status == 2 and complaint in said and said.count("\n") == 1
    assert not fake.started and not (tmp_path / "study.journal").exists()


def test_without_optuna_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("headrace.launch.search.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("headrace.launch.search.search", raising=False)
    monkeypatch.delattr("headrace.launch.search.population", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run(tmp_path) == 2
    assert "pip install 'headrace[search]'" in capsys.readouterr().err
