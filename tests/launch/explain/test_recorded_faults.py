"""Tests that what is wrong with a recorded run is named first, and healthy runs get no word."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from headrace.launch.config import starts
from headrace.launch.explain import explain, figures
from tests.launch.explain.recorded_faults import ALL, RECORDINGS, keep

FAULTS = [name for name, recorded in ALL.items() if recorded.finding]
HEALTHY = [name for name, recorded in ALL.items() if not recorded.finding]


def test_there_are_enough_of_both() -> None:
    assert len(FAULTS) >= 15 and len(HEALTHY) >= 15
    bare = {
        starts.load_kept(RECORDINGS / name).algorithm.name for name in HEALTHY if "bare" in name
    }
    assert bare == {"appo", "impala", "ppo"}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_first_with_a_remedy_that_the_run_can_have(name: str) -> None:
    found = explain.findings(figures.read(RECORDINGS / name))
    assert found[0].name == ALL[name].finding
    assert found[0].sets
    assert starts.load_kept(RECORDINGS / name, found[0].sets) != starts.load_kept(RECORDINGS / name)


def test_the_last_lines_of_a_training_are_the_first_findings() -> None:
    found = explain.for_summary(figures.read(RECORDINGS / "rewards-large"))
    assert json.loads(json.dumps(found)) == found
    assert (found[0]["name"], found[0]["gain"]) == ("reward scale", None)
    first, *_, last = explain.last_lines([*found, *found, *found], Path("out"))
    assert first.startswith("explain     the value loss is") and "\n" not in first
    assert last.startswith(" " * 12) and last.endswith("; headrace explain out says more")
    assert len(explain.last_lines(found * 3, Path("out"))) == 3
    assert "says more" not in "".join(explain.last_lines(found[:1], Path("out")))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gets_no_word(name: str) -> None:
    assert explain.findings(figures.read(RECORDINGS / name)) == []
    assert explain.for_summary(figures.read(RECORDINGS / name)) == []


@pytest.mark.parametrize("name", ALL)
def test_without_its_summary_a_run_that_trains_is_judged_by_what_it_learns(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(RECORDINGS / name, folder)
    (folder / "summary.json").unlink()
    found = explain.findings(figures.read(folder))
    by_time = {"one core", "slow environment", "acting", "learner", "pacing"}
    expected = [] if ALL[name].finding in {*by_time, ""} else [ALL[name].finding]
    assert [one.name for one in found][:1] == expected


def test_the_figures_of_a_recording_are_those_of_its_run(tmp_path: Path) -> None:
    """A recording keeps what the rules read: recorded again, nothing is lost."""
    for name in ALL:
        whole = tmp_path / name
        shutil.copytree(RECORDINGS / name, whole)
        keep(whole, tmp_path / f"{name}.again")
        one, again = (figures.read(folder) for folder in (whole, tmp_path / f"{name}.again"))
        assert dataclasses.replace(one, run=again.run) == again
        assert len(json.dumps([dict(line) for line in again.lines])) < 40_000
