"""The examples of docs/environments.md, word for word."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.system.conftest import Place

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
BLOCK = re.compile(r"([^\n]+(?:\n[^\n]+)*)\n\n```(?:python|toml)\n(.*?)```", re.DOTALL)


def files() -> dict[str, str]:
    """The first `name.ext` in the paragraph before a block says which file the block is."""
    found = {}
    for paragraph, text in BLOCK.findall(PAGE.read_text()):
        name = re.search(r"`(\w+\.(?:py|toml))`", paragraph)
        assert name is not None, paragraph
        found[name[1]] = text
    return found


def test_the_page_shows_these_files() -> None:
    assert sorted(files()) == [
        "against.toml",
        "cost.py",
        "costly.toml",
        "critic.toml",
        "halls.py",
        "halls.toml",
        "league.toml",
        "longer.py",
        "longer.toml",
        "meeting.py",
        "meeting.toml",
        "pursuit.toml",
        "reach.py",
        "reach.toml",
        "second.toml",
        "sides.toml",
        "talk.toml",
        "teams.py",
        "teams.toml",
        "turns.toml",
        "walk.py",
        "walk.toml",
    ]


# The return that its last episodes must have, and what none can have more of.
RETURNS = {
    "walk.toml": (0.95, 1.0),
    # 50 steps at most, each costs 0.01, and the end pays 1.
    "costly.toml": (-0.5, 1.0),
    "reach.toml": (0.0, 1.0),
    "halls.toml": (0.0, 1.0),
    "longer.toml": (0.0, 1.0),
    "meeting.toml": (0.9, 1.0),
    # Who draws as well wins every second game.
    "second.toml": (0.1, 1.0),
}


@pytest.mark.parametrize("run", list(RETURNS))
def test_its_examples_train(place: Place, run: str) -> None:
    for name, text in files().items():
        (place.folder / name).write_text(text)
    train = place.headrace("train", run, "--out", str(place.out), "--quiet")
    assert train.ends() == 0, train.text()
    summary = place.summary()
    assert summary["trained_steps"] > 0
    least, most = RETURNS[run]
    assert least <= summary["mean_return"] <= most
    if run == "longer.toml":
        # A line is written when its batch counts, the function is asked just before. What a batch
        # lacks of a whole one are the steps that begin an episode.
        used = tomllib.loads((place.out / "run.toml").read_text())
        unrolls, unroll = used["pacing"]["batch_unrolls"], used["unroll"]
        batch = unrolls * unroll["length"] * unroll["envs"]
        for line in place.history():
            at = line["trained_steps"]
            asked = [2 + round(8 * min(1.0, steps / 20_000)) for steps in (at - batch, at)]
            assert asked[0] <= line["setting.length"] <= asked[1]
        assert place.history()[-1]["setting.length"] == 10


# Its policies, and the return that they must have.
POLICIES = {"talk": (("speaker", "listener"), 0.9), "teams": (("red", "blue"), 9.0)}


@pytest.mark.parametrize("run", list(POLICIES))
def test_its_policies_learn(place: Place, run: str) -> None:
    for name, text in files().items():
        (place.folder / name).write_text(text)
    train = place.headrace("train", f"{run}.toml", "--out", str(place.out), "--quiet")
    assert train.ends(timeout_s=900.0) == 0, train.text()
    policies, least = POLICIES[run]
    for policy in policies:
        summary = json.loads((place.out / policy / "summary.json").read_text())
        assert summary["stop_reason"] == "return" and summary["mean_return"] >= least


def test_its_policies_have_a_league(place: Place) -> None:
    run = place.toml("sides.toml", files()["sides.toml"])
    train = place.headrace("train", run, "--out", str(place.out), "--quiet")
    assert train.ends(timeout_s=900.0) == 0, train.text()
    met = {
        name: json.loads((place.out / name / "summary.json").read_text())["league"]
        for name in ("main", "exploiter")
    }
    (past,) = met["main"]
    assert past["who"] == "past" and past["won"] + past["lost"] > 100
    assert met["exploiter"] == [], "it meets the newest"
