"""A run with a league, from training to ratings; and what cannot have one."""

import json
import os
import re
import signal

import pytest

from headrace.broker.journal import audit
from headrace.launch.results import loaded_run
from tests.system.commands.test_policies import LEARNS_S, exact, process_of
from tests.system.commands.test_policies import train as train_policies
from tests.system.commands.test_train import check_books
from tests.system.conftest import Place, Process, until
from tests.trainings import trained

NIM = """
[run]
name = "nim"

[env]
id = "headrace.actors.envs.toys.several_agents:Nim"
metrics = ["right"]

[unroll]
length = 16
envs = 32

[model]
hidden = [32]

[algorithm]
name = "appo"

[league]
share = 0.7
every = 2
keep = 4
others = ["random"]
pick = "prioritised"

[checkpoint]
every_s = 1
keep_every = 10

[stop]
steps = 40000
"""


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_a_run_with_a_league_is_exact_and_its_checkpoints_are_rated(
    place: Place, stepping: str
) -> None:
    place.run = place.toml("nim.toml", NIM)
    train = place.train("--quiet", "--set", f"actor.stepping={stepping}")
    assert train.ends() == 0, train.text()
    summary = place.summary()
    assert [row["opponent"] for row in summary["league"]] == ["past", "random"]
    for row in summary["league"]:
        assert row["won"] + row["lost"] > 50 and row["low"] < row["rating"] < row["high"]
    assert summary["league"][1]["low"] > 0, "it is better than random"
    # Episodes that ended in unrolls are the policy's own: of a game with others one agent's.
    assert summary["metrics"]["right"] > 0.3
    check_books(place)
    rate = place.headrace("rate", str(place.out), "--players", "3", "--games", "40")
    assert rate.ends() == 0, rate.text()
    league = json.loads((place.out / "league.json").read_text())
    assert league["players"][0] == "random" and 2 <= len(league["players"]) <= 4
    games = [sum(pair) for row in league["won_drawn_lost"] for pair in row]
    assert set(games) == {0, 40}
    strongest = league["players"][league["rating"].index(max(league["rating"]))]
    assert rate.text().splitlines()[1].split()[0] == strongest


RULE = """
from pathlib import Path

def note(league):
    with Path("met").open("a") as met:
        met.write(" ".join(str(one.version) for one in league) + "\\n")
    return [1.0] * len(league)
"""


def test_a_resumed_run_meets_what_it_was(place: Place) -> None:
    place.run = place.toml("nim.toml", NIM)
    (place.folder / "rules.py").write_text(RULE)
    keys = ("league.pick=rules:note", "league.others=[]", "checkpoint.every_s=0.2")
    sets = ["--no-evaluate", "--quiet", *(word for key in keys for word in ("--set", key))]
    train = place.train(*sets, "--stop-steps", "20000")
    assert train.ends() == 0, train.text()
    met = place.folder / "met"
    assert {len(line.split()) for line in met.read_text().splitlines()} >= {1, 2, 3}
    met.unlink()
    kept = loaded_run.versions(place.out, "checkpoints", "best")
    assert len(kept) > 1
    resumed = place.train("--resume", *sets, "--stop-steps", "25000")
    assert resumed.ends() == 0, resumed.text()
    first = [int(version) for version in met.read_text().splitlines()[0].split()]
    assert len(first) > 1 and set(first) <= {*kept} | {kept[-1] + n for n in range(10)}, first
    check_books(place)


TWO = (
    NIM.replace("envs = 32", "envs = 1").replace("steps = 40000", "steps = 15000")
    + """
[pacing]
batch_unrolls = 16

[actor]
groups = 32

[broker]
beat_s = 0.2
lease_s = 2.0

[policies.first]
agents = ["first"]

[policies.second]
agents = ["second"]
"""
)


@pytest.mark.parametrize("stepping", ["inline", "processes"])
def test_policies_of_a_game_meet_what_the_other_was(place: Place, stepping: str) -> None:
    place.run = place.toml("nim.toml", TWO)
    how = ("--no-evaluate", "--quiet", "--set", f"actor.stepping={stepping}")
    process = train_policies(place, *how)
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    for name in ("first", "second"):
        summary = json.loads((place.out / name / "summary.json").read_text())
        assert [row["opponent"] for row in summary["league"]] == ["past", "random"]
        assert all(row["won"] + row["lost"] > 20 for row in summary["league"])
        exact(place.out / name)
    games = ("--players", "2", "--games", "20")
    rate = place.headrace("rate", str(place.out), *games)
    assert rate.ends() == 0, rate.text()
    rated = json.loads((place.out / "league.json").read_text())
    sides = [name.split()[0] for name in rated["players"]]
    assert sides == ["first"] * 3 + ["second"] * 3
    for side, row in zip(sides, rated["won_drawn_lost"], strict=True):
        played = [sum(pair) for pair in row]
        assert played == ([0, 0, 0, 20, 20, 20] if side == "first" else [0] * 6)
    one_side = place.headrace("rate", str(place.out / "first"), *games)
    assert one_side.ends() == 2 and "its policy plays only first" in one_side.text()
    unlike = place.headrace("rate", str(place.out), *games, "--against", "random")
    assert unlike.ends() == 2 and "does not say for which" in unlike.text()
    alone = ("--resume", "--set", "policies.second.stop.steps=20000")
    again = train_policies(place, "--no-evaluate", "--quiet", *alone)
    assert again.ends(timeout_s=LEARNS_S) == 0, again.text()
    assert exact(place.out / "second").env_steps >= 20000, "it learns on, with nobody to meet"


def test_a_sampler_of_two_policies_that_is_started_again_meets_their_past(place: Place) -> None:
    place.run = place.toml("nim.toml", TWO.replace("steps = 15000", "steps = 100_000_000"))
    (place.folder / "rules.py").write_text(RULE)
    process = train_policies(place, "--no-evaluate", "--quiet", "--set", "league.pick=rules:note")
    folders = [place.out / name for name in ("first", "second")]
    until(
        lambda: all(len(loaded_run.versions(one, "checkpoints")) > 1 for one in folders),
        "both have a past",
    )
    os.kill(process_of(process, "actor"), signal.SIGKILL)
    met = place.folder / "met"
    met.unlink()
    until(lambda: met.exists() and met.read_text().endswith("\n"), "the next sampler's first game")
    process.signal(signal.SIGINT)
    assert process.ends() == 3, process.text()
    assert len(met.read_text().splitlines()[0].split()) > 2, "random, and two of before"
    for folder in folders:
        account = audit.read(folder / "ledger", copies=0)
        assert account.unaccounted() == account.untrue == 0


def test_a_newcomer_meets_what_a_policy_was_that_meets_only_the_newest(place: Place) -> None:
    """Starts a sampler of two policies that knows no folder of theirs, as on another machine."""
    started, brokers = [], []
    for name, share in (("first", "0.7"), ("second", "0.0")):
        text = TWO.partition("[policies.first]")[0].replace("steps = 15000", "steps = 100_000_000")
        text = text.replace('Nim"', f'Nim"\nagents = ["{name}"]').replace('"nim"', f'"{name}"')
        place.run = place.toml(f"{name}.toml", text.replace("share = 0.7", f"share = {share}"))
        place.out, address = place.folder / name, f"{place.ipc}-{name}"
        place.ledger = place.out / "ledger"
        started.append(place.broker("--ledger", str(place.ledger), bind=address))
        started.append(place.learner(broker=address))
        brokers += ["--broker", address]
    own = (*brokers, "--allow", "headrace.actors")
    started.append(place.headrace("actor", *own, "--name", "early"))
    until(lambda: trained(place.out / "ledger") > 200, "versions to keep")
    late = place.headrace("actor", *own, "--name", "late")
    until(lambda: len(begun_with(late)) > 1, "it is told of several")
    assert [one.term() for one in (late, *started[::-1])] == [0] * 6


def test_what_cannot_have_a_league_is_told_in_a_line(place: Place) -> None:
    share = ("--set", "league.share=0.5")
    one = place.headrace("train", "cartpole", "--out", str(place.out / "a"), "--quiet", *share)
    assert one.ends() == 2
    assert "league.share: CartPole-v1 has one agent, and there are no others" in one.text()
    place.run = place.toml("nim.toml", NIM)
    nobody = place.train("--quiet", "--set", 'league.others=["nobody"]')
    assert nobody.ends() == 2
    said = "league.others = 'nobody' is no folder of a run; it is random, module:function, or one"
    assert said in nobody.text()
    seated = ("--set", 'env.agents=["first"]', "--set", 'env.others={ second = "random" }')
    fixed = place.headrace("train", place.run, "--out", str(place.out / "b"), "--quiet", *seated)
    assert fixed.ends() == 2
    said = "league.share needs a policy that plays all agents, or others that learn beside it"
    assert said in fixed.text()
    rate = place.headrace("rate", str(place.out / "a"))
    assert rate.ends() == 2 and len(rate.text().splitlines()) == 1


def test_what_a_member_remembers_must_fit(place: Place) -> None:
    """A policy with memory joins only a run of the same; one without joins any."""
    place.run = place.toml("nim.toml", NIM.replace("steps = 40000", "steps = 2000"))
    lstm = ("--set", "model.core=lstm")
    first = place.headrace("train", place.run, "--out", str(place.out / "a"), "--quiet", *lstm)
    assert first.ends() == 0, first.text()
    other = ("--set", f'league.others=["{place.out / "a"}"]')
    again = place.headrace(
        "train", place.run, "--out", str(place.out / "b"), "--quiet", *lstm, *other
    )
    assert again.ends() == 0, again.text()
    without = place.headrace("train", place.run, "--out", str(place.out / "c"), "--quiet", *other)
    assert without.ends() == 2
    assert "remembers 512 numbers, this run's 0" in without.text()


def test_games_at_several_brokers_are_counted_together(place: Place) -> None:
    two = ("broker.shards=2", "pacing.batch_unrolls=2", "actor.count=4", "actor.groups=2")
    place.run = place.toml("nim.toml", NIM)
    train = place.train("--quiet", *(word for one in two for word in ("--set", one)))
    assert train.ends() == 0, train.text()
    parts = [
        json.loads((place.out / name).read_text())["league"]
        for name in ("broker.json", "broker-1.json")
    ]
    rows = place.summary()["league"]
    assert [row["opponent"] for row in rows] == ["past", "random"] and all(parts)
    for row in rows:
        each = [one for part in parts for one in part if one["who"] == row["who"]]
        assert row["won"] == sum(one["won"] for one in each) > 50
        assert row["low"] < row["rating"] < row["high"]
    check_books(place)


def begun_with(sampler: Process) -> list[int]:
    """Returns the versions that a sampler's league began with; they may come one by one."""
    told = re.findall(r"the league begins with versions ([0-9, ]+)", sampler.text())
    return [int(version) for line in told for version in line.split(", ")]


def test_a_newcomer_meets_what_the_policy_was_before_it_came(place: Place) -> None:
    """Starts a sampler that knows no folder of the run, as on another machine."""
    place.run = place.toml("nim.toml", NIM.replace("steps = 40000", "steps = 100_000_000"))
    broker, learner = place.broker(), place.learner()
    own = ("--allow", "headrace.actors")
    first = place.actor(*own)
    until(lambda: place.trained() > 200, "versions to keep")
    late = place.headrace("actor", "--broker", place.ipc, "--name", "late", *own)
    until(lambda: len(begun_with(late)) > 1, "it is told of several")
    versions = begun_with(late)
    assert versions == sorted(versions) and max(versions) >= 8, "not only the first few"
    assert [one.term() for one in (late, first, learner, broker)] == [0, 0, 0, 0]
