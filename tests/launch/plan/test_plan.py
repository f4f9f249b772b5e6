"""`headrace plan`: what its page shows is what it prints; figures, a picture, a measurement."""

import json
import re
import shlex
from pathlib import Path

import pytest

from headrace.launch import cli

PAGE = Path(__file__).parents[3] / "docs" / "deploy" / "plan.md"
SHOWN = re.findall(r"```\n(headrace plan [^\n]+)\n```\n```text\n(.+?)\n```", PAGE.read_text(), re.S)
COSTS = "sampler_s = 1e-3\nlearner_s = 1e-4\nbroker_s = 2e-6\n"
PRICES = "InstanceType,vCPUs,AcceleratorName,AcceleratorCount,Price\nbox,8,,,0.5\ngpu,8,L4,1,0.9\n"


def planned(*words: str) -> int:
    return cli.main(["plan", "cartpole", *words])


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("costs.toml").write_text(COSTS)
    Path("prices.csv").write_text(PRICES)
    return ["--costs", "costs.toml", "--prices", "prices.csv"]


def test_the_page_shows_seven_plans() -> None:
    assert len(SHOWN) == 7


@pytest.mark.parametrize(("line", "shown"), SHOWN, ids=[words.split()[-1] for words, _ in SHOWN])
def test_the_page_shows_what_is_printed(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PAGE.parent)
    assert cli.main(shlex.split(line)[1:]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(shown + "\n"), "up to where the page ends"


def test_the_figures_are_written(given: list[str]) -> None:
    assert planned(*given, "--gpu", "L4=50000", "--steps-per-s", "20000", "--to", "p.json") == 0
    found = json.loads(Path("p.json").read_text())
    assert found["learner"] == {"ranks": 1, "device": "L4"}
    assert sum(one["count"] for one in found["machines"]) == 3
    assert found["price_per_h"] == pytest.approx(1.9)
    assert found["predicted_per_s"] >= 20_000
    assert found["costs"]["sampler_s"] == 1e-3
    assert found["goal_per_s"] == 20_000


def test_a_deadline_is_a_rate(given: list[str]) -> None:
    assert planned(*given, "--steps", "7200000", "--deadline", "1h", "--to", "p.json") == 0
    assert json.loads(Path("p.json").read_text())["goal_per_s"] == 2000


def test_the_picture_shows_the_price_of_more_and_less(given: list[str]) -> None:
    assert planned(*given, "--steps-per-s", "2000", "--picture", "p.svg") == 0
    drawn = Path("p.svg").read_text()
    assert drawn.startswith("<svg")
    assert "2,000 steps/s, $0.5/h" in drawn


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--steps-per-s", "10"], "a goal, a line, --machine and --picture need machines"),
        (["--round-trip", "0.1s"], "a goal, a line, --machine and --picture need machines"),
        (["--prices", "prices.csv", "--line", "20"], "--line needs costs that say step_bytes"),
        (["--prices", "prices.csv", "--round-trip", "0.1"], "is no time: 90s, 20m or 2h"),
        (["--prices", "prices.csv", "--steps", "10"], "the goal is --steps-per-s, or"),
        (["--prices", "none.csv"], "cannot read the prices"),
        (["--prices", "prices.csv", "--costs", "none.toml"], "cannot read the costs"),
        (["--prices", "prices.csv", "--steps-per-s", "90000"], "a learner on a core trains 10,000"),
        (["--prices", "prices.csv", "--to", "no/where.json"], "cannot write no/where.json"),
        (["--gpu", "L4"], "is not as T4=20000"),
        (["--prices", "prices.csv", "--gpu", "T4=9"], "--gpu T4: no machine to choose from"),
    ],
)
def test_what_is_wrong_is_one_line(
    given: list[str], words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = planned(*given[:2], *words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    said = capsys.readouterr().err.strip()
    assert told in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_costs_are_measured_by_training_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned("--seconds", "2", "--to", str(tmp_path / "p.json")) == 0
    found = json.loads((tmp_path / "p.json").read_text())["costs"]
    assert all(1e-7 < found[part] < 1e-2 for part in ("sampler_s", "learner_s", "broker_s"))
    assert 10 < found["sampler_mib"] < 1000
    assert 10 < found["step_bytes"] < 1000
    assert 10_000 < found["weights_bytes"] < 100_000
    assert re.search(r"^here +[\d,]+ steps/s by 2 samplers", capsys.readouterr().out, re.M)


@pytest.mark.slow
def test_a_run_that_cannot_be_trained_here_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "bare", "--set", "env.id=NoSuch-v0"]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert "the run trains nothing here: " in line
