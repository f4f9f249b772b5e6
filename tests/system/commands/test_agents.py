"""A run with several agents, from training to a score."""

import json

import pytest

from tests.system.commands.test_train import check_books
from tests.system.conftest import Place

# The best is 10 an episode; agents that draw get 7.5.
SEATS = """
[run]
name = "seats"

[env]
id = "headrace.actors.envs.toys.several_agents:Seats"
kwargs = { agents = 2 }
metrics = ["taken"]

[unroll]
length = 16
envs = 8

[model]
hidden = [32]

[algorithm]
name = "appo"

[evaluate]
episodes = 10
greedy = false

[stop]
return = 9.5
steps = 200000
"""


@pytest.mark.parametrize("stepping", ["inline", "processes"])
def test_agents_learn_and_are_scored(place: Place, stepping: str) -> None:
    place.run = place.toml("seats.toml", SEATS)
    sets = ("--set", f"actor.stepping={stepping}")
    assert place.train("--evaluate", "--quiet", *sets).ends() == 0
    summary = place.summary()
    assert summary["stop_reason"] == "return" and summary["mean_return"] >= 9.5
    check_books(place)
    last = place.history()[-1]
    # The last steps of 56 games: 0.75 if they were drawn, 0.95, seven deviations above 0.8, now.
    assert last["mean_length"] == 10.0 and 0.8 < last["metric.taken"] <= 1.0
    assert 0.8 < summary["metrics"]["taken"] <= 1.0
    scores = (place.out / "evaluations.jsonl").read_text().splitlines()
    # Of ten episodes that are drawn: 7.5, six deviations below that.
    assert all(6.0 <= json.loads(line)["mean"] <= 10.0 for line in scores) and scores
    assert place.headrace("play", str(place.out), "--episodes", "5").ends() == 0


def test_columns_that_do_not_fit_are_said_in_a_line(place: Place) -> None:
    place.run = place.toml("seats.toml", SEATS.replace("envs = 8", "envs = 7"))
    process = place.train("--no-evaluate", "--quiet")
    assert process.ends() == 2
    said = [line for line in process.lines() if "unroll.envs = 7" in line]
    assert said and all("each of the 2 agents" in line for line in said), process.text()


NIM = """
[run]
name = "nim"

[env]
id = "headrace.actors.envs.toys.several_agents:Nim"
metrics = ["right"]

[unroll]
length = 16
envs = 64

[model]
hidden = [64, 64]

[algorithm]
name = "appo"
entropy_coef = 0.02
uses = 4

[pacing]
batch_unrolls = 1

[actor]
groups = 2

[evaluate]
episodes = 10

[stop]
return = 0.95
metric = "right"
steps = 300000
"""


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_agents_that_take_turns_learn_by_playing_each_other(place: Place, stepping: str) -> None:
    place.run = place.toml("nim.toml", NIM)
    sets = ("--set", f"actor.stepping={stepping}")
    assert place.train("--evaluate", "--quiet", *sets).ends() == 0
    summary = place.summary()
    assert summary["stop_reason"] == "return"
    # What one wins the other loses.
    assert abs(summary["mean_return"]) < 0.5
    check_books(place)
    assert place.history()[-1]["metric.right"] >= 0.95
    # It goes on from its checkpoint.
    steps = summary["trained_steps"] + 5000
    limits = ("--set", "stop.return=2", "--set", f"stop.steps={steps}")
    more = place.train("--no-evaluate", "--quiet", "--resume", *limits)
    assert more.ends() == 3, more.text()  # there is no such goal
    assert place.summary()["trained_steps"] >= steps
    check_books(place)
    assert place.headrace("play", str(place.out), "--episodes", "5").ends() == 0


def test_agents_that_come_and_go_are_scored_and_their_batches_replayed(place: Place) -> None:
    """Neither an evaluation nor a replay takes it that all agents play all the time."""
    shifts = SEATS.replace("several_agents:Seats", "several_agents:Shifts")
    shifts = shifts.replace('metrics = ["taken"]', "").replace("return = 9.5", "return = 2")
    place.run = place.toml("shifts.toml", shifts.replace("steps = 200000", "steps = 20000"))
    train = place.train("--evaluate", "--record", "--quiet")
    assert train.ends() == 3, train.text()  # there is no such return
    check_books(place)
    scores = (place.out / "evaluations.jsonl").read_text().splitlines()
    # A third is what agents get that draw, and 1 the best.
    assert 0.5 < json.loads(scores[-1])["mean"] <= 1.0
    replay = place.headrace("replay", str(place.out))
    assert replay.ends() == 0 and "identical" in replay.text(), replay.text()
