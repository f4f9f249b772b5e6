"""headrace report: one page of a run, whole or cut off, with nothing beside it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.config import run_file
from headrace.launch.results import plots, report

SUMMARY: dict[str, Any] = {
    "stop_reason": "return",
    "wall_s": 12.3,
    "mean_return": 480.25,
    "mean_length": 77.5,
    "metrics": {"<won>": 0.5625},
    "trained_steps": 40000,
    "trained_steps_per_s": 3333.3,
    "version": 312,
    "lag": {"mean": 1.5, "p95": 2.0, "max": 3.0},
    "peak_rss_mb": 351.0,
    "cpu_s": 20.5,
    "costs": {"sampler_s": 1.151e-5, "learner_s": 3e-4, "broker_s": 2.12e-6, "busy": 0.9},
    "unaccounted": 0,
    "league": [
        {
            "who": "past",
            "opponent": "past",
            "won": 1200,
            "drawn": 3,
            "lost": 800,
            "points": 0.6,
            "rating": 70.4,
            "low": 55.0,
            "high": 86.2,
        },
        {
            "who": "other_1",
            "opponent": "the<ir>:best",
            "won": 0,
            "drawn": 0,
            "lost": 5,
            "points": 0.0,
            "rating": -416.0,
            "low": -900.0,
            "high": -100.0,
        },
    ],
    "unrolls": {
        "generated": 640,
        "trained": 636,
        "stale": 0,
        "shed": 0,
        "rejected": 0,
        "poison": 0,
        "abandoned": 3,
        "duplicate": 9,
        "in_flight": 1,
    },
    "trained_quarters": [0.025, 0.325, 0.325, 0.325],
    "phase_seconds": {"wait": 3.0, "train": 9.0},
    "machine": {"cpu": "A <fast> one", "cores": 2, "gpus": []},
}


class Page(HTMLParser):
    """What it shows, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.fetches: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "use", "path"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetches.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def entry(at: int, **more: Any) -> dict[str, Any]:
    return {
        "t": at / 4,
        "version": at,
        "trained_steps": 128 * at,
        "mean_return": float(at),
        "mean_length": float(at),
        "metric.<won>": 0.5,
        "metric.<won>.mean": 0.25,
        "metric.<won>.min": 0.0,
        "lag": 1.0,
        "policy_loss": 0.1,
        "entropy": 0.5,
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = run_file.load("cartpole", ['env.id="no<b>&c:Such"'])
    (tmp_path / "run.toml").write_text(run_file.effective(run))
    (tmp_path / "history.jsonl").write_text(
        "".join(json.dumps(entry(at)) + "\n" for at in range(300)) + '{"t": 75.0, "vers'
    )
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    evaluation = {"t": 60.0, "version": 250, "mean": 1.0, "metric.<won>": 0.75, "metric.far": 3.0}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    return tmp_path


def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


@pytest.mark.slow
def test_a_page_that_needs_nothing_beside_it(folder: Path) -> None:
    assert main(["report", str(folder)]) == 0
    shown = page(folder)
    assert shown.fetches == []
    assert not re.search(r"@import|url\((?!#)", (folder / "report.html").read_text())
    assert "480.2" in shown.text
    assert "solved after 12 s" in shown.text
    assert "640 unrolls were generated" in shown.text
    assert "weights of before 1,200 3 800 60% +70 +55 to +86" in shown.text
    assert "the<ir>:best 0 0 5 0% -416 -900 to -100" in shown.text, "escaped in the source"
    assert "Ratings" not in shown.text, "headrace rate has not played"
    assert "A <fast> one" in shown.text, "escaped in the source"
    assert "no<b>&c:Such by" in shown.text
    pictures = {path.stem for path in (folder / "report").glob("*.png")}
    named = {"curve", "throughput", "lag", "policy_loss", "entropy"}
    assert pictures == named | {"length", "metric-0", "metric-1", "metric-2"}
    assert "<won>.mean" in shown.text and "far" in shown.text  # which only evaluations tell
    assert "Episodes steps an episode" in shown.text and "<won>.mean" in shown.text
    assert "0.5625 <won>" in shown.text
    assert "11.5 / 300 / 2.12 us of a core a step" in shown.text
    assert (folder / "report" / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_shares_of_the_learners_time(folder: Path) -> None:
    report.report(folder, to=None)
    assert re.search(r"wait 3.0 s 25 % +train 9.0 s 75 %", page(folder).text)


@pytest.mark.slow
def test_a_run_that_still_goes_on(folder: Path) -> None:
    (folder / "summary.json").unlink()
    assert report.report(folder, to=folder / "deep" / "now.html") == 0
    shown = Page((folder / "deep" / "now.html").read_text())
    assert "no summary yet" in shown.text
    assert (folder / "deep" / "now" / "curve.png").is_file()


def test_a_run_that_ended_before_its_first_step(folder: Path) -> None:
    (folder / "history.jsonl").unlink()
    assert report.report(folder, to=None) == 0
    assert "<svg" not in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (("run.toml",), "holds no run: it has no run.toml"),
        (("history.jsonl", "summary.json"), "nothing to report"),
    ],
)
def test_what_is_no_run(
    folder: Path, gone: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in gone:
        (folder / name).unlink()
    assert main(["report", str(folder)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_place_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--to", str(folder / "run.toml" / "page.html")]) == 2
    assert "choose another place with --to" in capsys.readouterr().err


def test_rates_are_steps_over_seconds_and_do_not_cross_a_restart() -> None:
    history = [entry(at) for at in range(241)]
    assert all(rate == pytest.approx(512.0) for _, rate in plots.rates(history))
    assert len(plots.rates(history)) == 60
    back = [entry(at, t=60 + at / 4) for at in range(100, 200)]  # an older checkpoint
    assert all(rate == pytest.approx(512.0) for _, rate in plots.rates([*history, *back]))


@pytest.mark.slow
def test_of_a_week_a_thousand_points_are_drawn(folder: Path) -> None:
    lines = "".join(json.dumps(entry(at)) + "\n" for at in range(20_000))
    (folder / "history.jsonl").write_text(lines)
    report.report(folder, to=None)
    assert (folder / "report.html").stat().st_size < 500_000


@pytest.mark.slow
def test_ratings_are_shown_once_they_are_there(folder: Path) -> None:
    rated = {"players": ["random", "250"], "rating": [-90.0, 90.0], "low": [-120.0, 60.0]}
    (folder / "league.json").write_text(json.dumps({**rated, "high": [-60.0, 120.0]}))
    (folder / "summary.json").write_text(json.dumps({**SUMMARY, "league": {"won": 3}}))  # of 0.1
    assert main(["report", str(folder)]) == 0
    shown = page(folder).text
    assert "250 90 60 to 120 random -90 -120 to -60" in shown
    assert "Games of the league" not in shown
