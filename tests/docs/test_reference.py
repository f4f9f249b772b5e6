"""What the reference says of files, columns and statuses is what a run leaves."""

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from grafana.generate.registries import all_metrics
from headrace.launch.process import runtime
from tests.docs.pages import NAMES, PAGES, ROOT
from tests.system.conftest import LONG_S, RUN

REFERENCE = ROOT / "docs" / "reference"
FOLDER = (REFERENCE / "run-folder.md").read_text()
# With a KL term APPO has every statistic that there is. 156 optimiser steps take far
# longer than the quarter second between two lines of the history.
SETS = (
    "stop.steps=10000",
    "algorithm.name=appo",
    "algorithm.kl_coef=0.1",
    "algorithm.normalise_advantages=running",
    "evaluate.episodes=2",
    "evaluate.every_s=0",
    'env.wrappers=[{ id = "gymnasium.wrappers:RecordEpisodeStatistics" }]',
    'env.metrics=["episode.l"]',
    "env.settings={ gravity = 9.8 }",
)


def first_cells(page: str, heading: str) -> list[str]:
    """What stands in code in the first column of the first table below a line of a page."""
    _, _, below = page.partition(f"{heading}\n")
    table = below[below.index("\n|") :].strip().split("\n\n", 1)[0]
    cells = [row.strip("|").split("|")[0] for row in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with everything that it can leave behind."""
    place = tmp_path_factory.mktemp("run")
    (place / "small.toml").write_text(RUN)
    words = [
        sys.executable,
        "-m",
        "headrace.launch.cli",
        "train",
        "small.toml",
        "--out",
        "run",
        "--quiet",
    ]
    words += ["--evaluate", "--record", *(word for key in SETS for word in ("--set", key))]
    done = subprocess.run(
        words,
        cwd=place,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=6 * LONG_S,
    )
    assert done.returncode == runtime.OK, done.stderr
    return place / "run"


def columns(file: Path) -> set[str]:
    """The keys of all its lines."""
    entries: list[dict[str, Any]] = list(map(json.loads, file.read_text().splitlines()))
    return {key for entry in entries for key in entry}


@pytest.mark.parametrize(
    ("name", "page", "heading"),
    [
        ("history.jsonl", generate.history(), "# Columns of history.jsonl"),
        ("evaluations.jsonl", FOLDER, "## evaluations.jsonl"),
    ],
)
@pytest.mark.processes
def test_every_column_is_named_and_no_other(run: Path, name: str, page: str, heading: str) -> None:
    named = {
        column.replace("NAME", "episode.l").replace("KEY", "gravity")
        for column in first_cells(page, heading)
    }
    assert columns(run / name) == named


@pytest.mark.processes
def test_the_length_of_episodes_is_the_same_by_every_way(run: Path) -> None:
    """Counted by us, and told by gymnasium's wrapper in info."""
    *_, last = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
    assert last["metric.episode.l"] == pytest.approx(last["length"])
    summary = json.loads((run / "summary.json").read_text())
    assert summary["metrics"]["episode.l"] == pytest.approx(summary["mean_return"], rel=0.5)
    assert summary["mean_length"] == pytest.approx(summary["mean_return"])  # CartPole pays 1 a step


@pytest.mark.processes
def test_every_key_of_the_summary_is_named_and_no_other(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) == set(first_cells(FOLDER, "## summary.json"))


@pytest.mark.processes
def test_every_file_is_named(run: Path) -> None:
    """Numbers in a name stand for any number."""
    always = {_pattern(name) for name in first_cells(FOLDER, "# The run's folder") if name != ".."}
    there = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    left = {name for name in there if not any(_lies_in(name, pattern) for pattern in always)}
    assert left == set()
    second_start = {"[0-9][0-9][0-9].toml"}
    assert {
        pattern for pattern in always if not any(_lies_in(name, pattern) for name in there)
    } == second_start


@pytest.mark.processes
def test_every_file_of_a_checkpoint_is_named_and_no_other(run: Path) -> None:
    there = {path.name for path in (run / "checkpoints").rglob("*") if path.is_file()}
    assert there == set(first_cells(FOLDER, "## A checkpoint"))


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """By every name that a scrape or an expression may hold."""
    return {name for one in all_metrics() for name in (one.name, *one.series)}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_metric_named_is_there(page: Path, metrics: set[str]) -> None:
    named = set(re.findall(r"(?<![\w/])headrace_[a-z]+_\w+", page.read_text()))
    assert {name for name in named if not _is_one(name, metrics)} == set()


def _is_one(name: str, metrics: set[str]) -> bool:
    """A name that ends in an underscore is the beginning of several, as in headrace_samplers_*."""
    return name in metrics or (name[-1] == "_" and any(m.startswith(name) for m in metrics))


def test_every_exit_status_is_explained() -> None:
    page = (REFERENCE / "exit-statuses.md").read_text()
    told = [int(number) for number in re.findall(r"^\| (\d) \|", page, re.MULTILINE)]
    assert told == [
        runtime.OK,
        runtime.OUR_FAULT,
        runtime.YOUR_INPUT,
        runtime.LIMIT,
        runtime.DIVERGED,
    ]


def _pattern(name: str) -> str:
    return re.sub(r"\d(?=\d|\.toml|/|\.log|\.lock)", "[0-9]", name)


def _lies_in(name: str, pattern: str) -> bool:
    if pattern.endswith("/"):
        return fnmatch.fnmatchcase(name, f"{pattern}*")
    return fnmatch.fnmatchcase(name, pattern)
