"""Players that are alike, and begin from one seed, choose apart: in rock, paper, scissors those who
drew the same numbers would tie for ever."""

import json

from tests.system.commands.test_policies import LEARNS_S, train
from tests.system.conftest import Place

RUN = """
[run]
name = "hands"

[env]
id = "headrace.actors.envs.toys.several_agents:RockPaperScissors"

[unroll]
length = 11
envs = {envs}

[model]
hidden = [8]

[algorithm]
name = "ppo"
entropy_coef = 1.0  # what they play stays as good as even

[evaluate]
greedy = false

[stop]
steps = 3000
"""
SIDES = """
[policies.row]
agents = ["agent_0"]

[policies.column]
agents = ["agent_1"]
"""


def returns(place: Place, name: str = "") -> set[float]:
    """Returns the mean returns that were told, of the first player."""
    lines = (place.out / name / "history.jsonl").read_text().splitlines()
    told = [json.loads(line).get("mean_return") for line in lines]
    return {one for one in told if one is not None}


def test_policies_that_learn_beside_each_other(place: Place) -> None:
    place.run = place.toml("hands.toml", RUN.format(envs=16) + SIDES)
    process = train(place, "--quiet", "--evaluate")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    assert returns(place, "row") != {0.0}
    scores = (place.out / "row" / "evaluations.jsonl").read_text().splitlines()
    assert {json.loads(line)["mean"] for line in scores} != {0.0}
    played = place.headrace("play", str(place.out), "--sampled", "--episodes", "30")
    assert played.ends() == 0 and "mean 0.00, min 0.00, max 0.00" not in played.text()
    rate = place.headrace("rate", str(place.out), "--players", "1", "--games", "30")
    assert rate.ends() == 0, rate.text()
    rated = json.loads((place.out / "league.json").read_text())
    games = [pair for row in rated["won_drawn_lost"] for pair in row if sum(pair)]
    assert len(games) == 4 and all(drawn < 30 for _, drawn, _ in games)


def test_a_policy_that_is_scored_against_itself(place: Place) -> None:
    place.run, itself = place.toml("hands.toml", RUN.format(envs=32)), str(place.out)
    process = place.train("--quiet")
    assert process.ends() == 0, process.text()
    against = ("--set", f"evaluate.against={itself}")
    played = place.headrace("play", itself, "--sampled", "--episodes", "30", *against)
    assert played.ends() == 0 and " 30 drawn" not in played.text()
    rate = place.headrace("rate", itself, "--players", "1", "--games", "30", "--against", itself)
    assert rate.ends() == 0, rate.text()
    rated = json.loads((place.out / "league.json").read_text())
    games = [pair for row in rated["won_drawn_lost"] for pair in row if sum(pair)]
    assert len(games) == 3 and all(drawn < 30 for _, drawn, _ in games)
