"""Kills the process that acts for all samplers of `headrace node` or `headrace train`: nobody
depends on it."""

import os
import signal
from pathlib import Path

import pytest

from tests.system.conftest import RUN, Place, process_names, until
from tests.system.harness.tally import tally
from tests.system.roles.test_node import Machine, check_books, leaves_nothing

# A call of it costs more than a question; a plain network of numbers is not asked for.
MEMORY = 'hidden = [16]\ncore = "gru"\ncore_units = 8'


def nothing_is_lost(place: Place) -> None:
    found = tally(place.ledger)
    assert found.given_up == set()
    assert found.lost(found.journals()) == []
    check_books(place)


def test_it_acts_for_all_and_its_death_and_sleep_harm_nobody(place: Place) -> None:
    machine = Machine(place, "--acting", "central", model=MEMORY)
    machine.reaches("samplers_welcome", 4)
    machine.reaches("act_rows_total", 2000)
    killed = {0}
    for _ in range(2):
        killed.add(machine.kills("act"))
        until(lambda: {machine.pids().get("act", 0)} - killed, "another one")
        rows = machine.figure("act_rows_total")
        machine.reaches("act_rows_total", rows + 1000)
    asleep = machine.pids()["act"]
    os.kill(asleep, signal.SIGSTOP)
    steps = machine.figure("samplers_env_steps_total")
    machine.reaches("samplers_env_steps_total", steps + 2000)
    os.kill(asleep, signal.SIGCONT)
    rows = machine.figure("act_rows_total")
    machine.reaches("act_rows_total", rows + 1000)
    assert machine.figure("act_rows_total") <= 4 * machine.figure("samplers_env_steps_total")
    text = machine.node.text()
    assert "n's act was killed by SIGKILL; started again" in text
    assert "the act process does not answer (" in text
    assert "other weights than version" not in machine.broker.text()
    machine.ends()
    nothing_is_lost(place)


def test_its_node_killed_it_leaves_nothing(place: Place) -> None:
    leaves_nothing(place, "--acting", "central", model=MEMORY, reaches="act_rows_total")


def test_it_is_started_only_where_it_is_of_use(place: Place) -> None:
    machine = Machine(place, "--acting", "auto", samplers=2)
    machine.node.says('actor.acting = "auto": it acts by itself, as a call of so small a network')
    place.trains(10)
    assert "act" not in machine.pids()
    machine.ends()


def named(place: Place) -> dict[str, int]:
    """Returns the processes of a run, by what ps calls them."""
    return {name: pid for pid, name in process_names(place.alive()).items()}


@pytest.mark.parametrize("shards", [1, 2])
def test_it_acts_for_the_samplers_of_train(place: Place, shards: int) -> None:
    place.run = place.toml("run.toml", RUN.replace("hidden = [16]", MEMORY))
    sets = ("actor.acting=central", "actor.count=3", f"broker.shards={shards}", "stop.return=none")
    train = place.train(
        "--stop-steps", "100000", *(word for one in sets for word in ("--set", one))
    )
    place.trains(30)
    before = until(lambda: (now := named(place)).get("act") and now, "one acts")
    assert {f"sampler-{at}" for at in range(3 if shards == 1 else 2)} <= before.keys()
    nodes = [pid for pid, words in place.alive().items() if " node --samplers " in words]
    assert len(nodes) == shards
    os.kill(before["act"], signal.SIGKILL)
    place.trains(30)
    os.kill(nodes[0], signal.SIGKILL)
    place.trains(30)
    until(lambda: named(place).get("act", before["act"]) != before["act"], "another one acts")
    train.signal(signal.SIGINT)
    assert train.ends() == 3, train.text()
    place.nothing_is_left()
    assert place.summary()["costs"] is None
    account = place.account()
    assert account.exact() and not account.twice, account


def test_a_lone_sampler_says_that_it_acts_by_itself(place: Place) -> None:
    place.run = place.toml("run.toml", Path(place.run).read_text() + 'acting = "central"\n')
    broker, learner = place.broker(), place.learner()
    sampler = place.actor()
    sampler.says('actor.acting = "central": it acts by itself, only `headrace node` has a process')
    place.trains(5)
    for each in (sampler, learner, broker):
        each.term()
