"""Every role started by hand, in every order; killed and started again; every unroll accounted
for."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from tests.system.conftest import RUN, Place, Process, until
from tests.system.harness.watching import stop_ahead_of_its_checkpoint, trained_versions

ORDERS = list(itertools.permutations(("broker", "learner", "actor")))


def start(place: Place, role: str, address: str) -> Process:
    match role:
        case "broker":
            return place.broker(bind=address)
        case "learner":
            return place.learner("--set", "stop.steps=3000", broker=address)
        case _:
            return place.actor(broker=address)


def clean(*processes: Process) -> None:
    for process in processes:
        assert "Traceback" not in process.text(), process.text()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_roles_find_each_other_in_any_order(place: Place, tcp: str, order: tuple[str, ...]) -> None:
    address = tcp if ORDERS.index(order) % 2 else place.ipc
    roles: dict[str, Process] = {}
    for role in order:
        roles[role] = start(place, role, address)
        # The next one comes when this one has had time to do all that it can do alone.
        if role == "broker":
            roles[role].says("run small at")
        elif "broker" in roles:
            roles["broker"].says(f"{role} .* joins")
        elif role == order[0]:
            roles[role].says("no broker answers at .* after 5 s")
    assert roles["learner"].ends() == 0, roles["learner"].text()
    assert roles["actor"].ends() == 0, roles["actor"].text()
    assert roles["broker"].popen.poll() is None
    assert roles["broker"].term() == 0
    clean(*roles.values())
    account = place.account()
    assert account.env_steps >= 3000
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)
    assert account.in_flight == 0
    place.nothing_is_left()


def finish(place: Place, broker: Process, learner: Process, *actors: Process) -> None:
    """Samplers first: they stay until everything they sent is acknowledged."""
    for process in (*actors, learner, broker):
        assert process.term() == 0, process.text()
        clean(process)
    place.nothing_is_left()


def test_a_killed_broker_comes_back_and_nothing_is_lost(place: Place, tcp: str) -> None:
    broker = place.broker(bind=tcp)
    learner, actors = place.learner(broker=tcp), [place.actor(broker=tcp) for _ in range(2)]
    place.trains(100)
    broker.kill()
    broker = place.broker(bind=tcp)
    place.trains(100)
    finish(place, broker, learner, *actors)
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)
    assert account.in_flight == 0
    assert account.outcomes["trained"] >= account.generated - 3 * 2 - 4


def test_a_killed_sampler_loses_only_what_it_had_not_handed_over(place: Place) -> None:
    broker, learner = place.broker(), place.learner()
    killed, survivor = place.actor("--name", "killed"), place.actor("--name", "survivor")
    broker.says("actor killed joins")
    broker.says("actor survivor joins")
    place.trains(100)
    killed.kill()
    again = place.actor("--name", "again")
    broker.says("actor again joins")
    until(lambda: len(list(place.ledger.glob("actor-*.log"))) == 3, "a third journal")
    place.trains(100)
    finish(place, broker, learner, survivor, again)
    account = place.account()
    assert account.outcomes["trained"] > 200
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)
    # Written down as generated and not sent yet, or on its way: at most one per stream.
    assert account.in_flight <= 2


def by_learner(place: Place) -> list[list[int]]:
    """The versions that trained an unroll, learner by learner, the oldest learner first."""
    return sorted(map(trained_versions, place.ledger.glob("learner-*.log")))


def test_a_killed_learner_comes_back_from_its_checkpoint(place: Place) -> None:
    broker, learner = place.broker(), place.learner()
    actors = [place.actor(), place.actor()]
    until(place.checkpoints, "a checkpoint")
    place.trains(100)
    stop_ahead_of_its_checkpoint(place, learner)
    learner.kill()
    saved = [json.loads(line) for line in (place.out / "history.jsonl").read_text().splitlines()]
    newest = int(place.checkpoints()[-1].name)
    seen = max(map(max, by_learner(place)))
    assert newest < seen
    learner = place.learner("--resume")
    assert int(learner.says(r"continues from \S+/(\d+)")[1]) == newest
    place.trains(100)
    finish(place, broker, learner, *actors)

    # Versions went on above everything that anybody had seen, the counters from the checkpoint.
    first, second = by_learner(place)
    assert max(first) == seen
    assert min(second) > seen
    after = place.history()[len(saved) :]
    assert after[0]["version"] > seen
    # A version is 64 steps, the dead ones left out; those between `newest` and `seen` are undone.
    steps = 64 * (newest + after[0]["version"] - seen)
    assert 0.7 * steps < after[0]["trained_steps"] <= steps
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    # What it had used when its word did not get through: at most what may lie at a learner.
    assert account.twice <= 3 * 2


def test_a_learner_without_a_checkpoint_starts_anew_above_what_was_seen(place: Place) -> None:
    place.run = place.toml("run.toml", RUN.replace("every_s = 0.3", "every_s = 3600"))
    broker, learner, actor = place.broker(), place.learner(), place.actor()
    place.trains(100)
    learner.kill()
    assert not place.checkpoints()
    learner = place.learner("--resume")
    learner.says("nothing to resume")
    place.trains(60)
    # Its first weights are not those that samplers hold under the same number.
    assert "acts with other weights" not in broker.text()
    finish(place, broker, learner, actor)
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    first, second = by_learner(place)
    # One above what was trained would be the number of weights that were published already.
    assert min(second) > max(first) + 1


@pytest.mark.parametrize("role", ["broker", "learner", "actor-0"])
def test_train_restarts_what_is_killed(place: Place, role: str) -> None:
    train = place.train("--stop-return", "501")
    until(place.checkpoints, "a checkpoint")
    place.trains(50)
    os.kill(child_of(place, train, role), signal.SIGKILL)
    train.says(f"{role} was killed by SIGKILL; starting it again")
    place.trains(100)
    assert train.term() == 3, train.text()
    assert "Traceback" not in train.text()
    place.nothing_is_left()
    summary, account = place.summary(), place.account()
    assert summary["stop_reason"] == "stopped"
    assert (account.unaccounted(), account.untrue) == (0, 0)
    assert account.in_flight <= (2 if role == "actor-0" else 0)
    assert account.twice <= (6 if role == "learner" else 0)


def test_train_brings_back_a_sampler_that_was_sent_away(place: Place) -> None:
    """SIGTERM to a sampler is a clean end, but not the run's."""
    train = place.train("--stop-return", "501")
    until(place.checkpoints, "a checkpoint")
    os.kill(child_of(place, train, "actor-0"), signal.SIGTERM)
    train.says("actor-0 ended with status 0; starting it again")
    place.trains(100)
    assert train.term() == 3, train.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)


def child_of(place: Place, train: Process, role: str) -> int:
    """Forks look alike: they were made in order, broker, learner, actor-0, actor-1."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())  # after that it begins again
    pids = sorted(place.alive().keys() - {train.pid}, key=lambda pid: (pid - train.pid) % most)
    return pids[["broker", "learner", "actor-0", "actor-1"].index(role)]
