"""Environments that raise, hang or die under `headrace train`: the run goes on, or says why not."""

import re
from pathlib import Path

import pytest

from tests.system.commands.test_train import check_books
from tests.system.conftest import Place

FACTORY = "headrace/Sleeper-v0"

# One environment a group, so that a fault takes nobody else's step along.
RUN = """
[run]
name = "faulty"

[env]
id = "headrace/Sleeper-v0"

[env.kwargs]
step_s = 0.001
{fault} = {chance}

[unroll]
length = 8
envs = 1

[model]
hidden = [16]
normalise_obs = false
normalise_returns = false

[algorithm]
trace = 1.0
normalise_advantages = false

[pacing]
batch_unrolls = 4
max_lag = 2

[broker]
beat_s = 0.2
lease_s = 2.0

[actor]
count = 2
groups = 4
stepping = "{stepping}"
step_timeout_s = {timeout_s}
crashes_per_hour = {budget}
drain_s = 2.0
"""

# Environment, seed, steps and the words of every failure that was said.
SAID = re.compile(
    re.escape(FACTORY) + r" failed and is restarted:"
    r" (step|time-out|death), environment (\d+), seed (\d+), after (\d+) steps: (.*)"
)


def faulty(
    place: Place,
    fault: str,
    chance: float,
    *,
    stepping: str,
    budget: int = 100_000,
    timeout_s: float = 60.0,
) -> None:
    text = RUN.format(
        fault=fault, chance=chance, stepping=stepping, budget=budget, timeout_s=timeout_s
    )
    place.run = place.toml("run.toml", text)


def failures(text: str, where: str) -> list[tuple[int, int, int, str]]:
    """(environment, seed, steps, words); all of them failed for the one reason asked for."""
    found = SAID.findall(text)
    assert {kind for kind, *_ in found} == {where}, text
    return [(int(env), int(seed), int(steps), words) for _, env, seed, steps, words in found]


def reached_its_limit(place: Place, steps: int) -> None:
    """As a run without a fault would have ended."""
    summary = place.summary()
    assert summary["stop_reason"] == "steps"
    assert summary["trained_steps"] >= steps
    assert summary["unrolls"]["poison"] == summary["unrolls"]["rejected"] == 0
    check_books(place)
    place.nothing_is_left()


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_a_run_goes_on_when_environments_raise(place: Place, stepping: str) -> None:
    faulty(place, "crash", 0.005, stepping=stepping)
    train = place.train("--stop-steps", "2000")
    assert train.ends() == 0, train.text()
    reached_its_limit(place, 2000)
    said = failures(train.text(), "step")
    assert len(said) >= 3
    shown = " (the traceback is shown once, above)"
    assert {words.removesuffix(shown) for *_, words in said} == {"RuntimeError: crashed as asked"}
    assert {env for env, *_ in said} <= set(range(4))
    # Two samplers, eight environments, and each is seeded anew when it is made again.
    assert len({seed for _, seed, *_ in said}) == len(said)
    assert all(steps < 2000 for _, _, steps, _ in said)
    # The first sampler to meet it shows the traceback, down to the line that raised.
    assert train.text().count("Traceback (most recent call last)") == 1
    assert train.text().count("in _perhaps_fail") == 1


def test_a_limit_before_the_goal_is_status_3_with_failures_too(place: Place) -> None:
    faulty(place, "crash", 0.02, stepping="inline")
    train = place.train("--stop-steps", "4000", "--stop-return", "1e9")
    assert train.ends() == 3, train.text()
    reached_its_limit(place, 4000)
    assert failures(train.text(), "step")
    # Episodes that were cut short by a failure count as episodes: nothing lives for 200 steps here.
    assert 0 < place.summary()["mean_return"] < 200


@pytest.mark.parametrize("stepping", ["threads", "processes"])
def test_a_run_goes_on_when_environments_hang(place: Place, stepping: str) -> None:
    faulty(place, "stall", 0.002, stepping=stepping, timeout_s=0.5)
    # Enough of them that the first one to hang is given up before the others have done it all.
    train = place.train("--stop-steps", "8000")
    assert train.ends() == 0, train.text()
    reached_its_limit(place, 8000)
    assert failures(train.text(), "time-out")
    # What it was doing is said: with a thread by its stack, with a process by what it dumped.
    assert "in _perhaps_fail" in train.text()


def test_a_run_goes_on_when_environments_take_their_process_down(place: Place) -> None:
    faulty(place, "die", 0.003, stepping="processes")
    train = place.train("--stop-steps", "3000")
    assert train.ends() == 0, train.text()
    reached_its_limit(place, 3000)
    said = failures(train.text(), "death")
    assert len(said) >= 2
    for *_, words in said:
        assert re.fullmatch(r"its process \d+ ended with exit status 13", words)


@pytest.mark.parametrize(
    ("stepping", "fault", "last"),
    [
        ("inline", "crash", r"step, .*: RuntimeError: crashed as asked"),
        ("threads", "crash", r"step, .*: RuntimeError: crashed as asked"),
        ("processes", "die", r"death, .*: its process \d+ ended with exit status 13"),
        ("threads", "stall", r"time-out, .*: no answer for .*s.*"),
        ("processes", "stall", r"time-out, .*: no answer for more than 0\.5 s.*"),
    ],
    ids=["inline-crash", "threads-crash", "processes-die", "threads-stall", "processes-stall"],
)
def test_a_spent_budget_ends_the_run(place: Place, stepping: str, fault: str, last: str) -> None:
    faulty(place, fault, 0.05, stepping=stepping, budget=3, timeout_s=0.5)
    train = place.train("--actors", "1", "--stop-steps", "1000000", "--quiet")
    assert train.ends() == 2, train.text()
    place.nothing_is_left()
    (line,) = [line for line in train.lines() if "crashes_per_hour" in line]
    words = rf"{FACTORY} failed 4 times within an hour, more than actor.crashes_per_hour = 3; "
    assert re.search(rf"{words}the last time: {last}$", line), line
    # The three it was allowed and the one too many.
    assert len(SAID.findall(train.text())) == 4
    assert "cannot work with this run; its line above says why" in train.lines()[-1]


def test_a_reward_that_is_no_number_costs_its_unroll_and_nothing_else(place: Place) -> None:
    faulty(place, "crash", 0.0, stepping="inline")
    train = place.train(
        "--actors",
        "1",
        "--stop-steps",
        "1200",
        "--set",
        "env.id=broken_envs:NonFiniteOnce",
        "--set",
        "env.kwargs={}",
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )
    assert train.ends() == 0, train.text()
    reached_its_limit(place, 1200)
    assert "reward is not finite" in train.text()
    # So few episodes are all in the mean. Each has 20 steps that pay 1; one with a gap in it has no
    # return at all.
    assert place.summary()["mean_return"] == 20.0
    assert all(line["mean_return"] in (None, 20.0) for line in place.history())
