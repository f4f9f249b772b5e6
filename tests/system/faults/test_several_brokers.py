"""A run with several brokers: one of them dies, and the others go on."""

import functools
import itertools
import os
import signal
from pathlib import Path

import pytest

from headrace.broker.transport import several
from headrace.launch.bench.simulated.cluster import SimulatedCluster
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec
from tests.system.conftest import Place, process_names

SAMPLERS, BATCH = 24, 12
PACING = {"batch_unrolls": BATCH, "max_lag": 2}
ENDLESS = ("--set", "stop.return=none", "--set", "stop.steps=none")
SHARDS = ("--set", "broker.shards=2", "--set", "actor.count=2", "--set", "pacing.batch_unrolls=2")


@pytest.mark.slow
@pytest.mark.processes
def test_a_broker_that_dies_takes_no_unroll_with_it_and_stops_nobody_else() -> None:
    """Kills each of two brokers in turn under samplers that send all they may."""
    with SimulatedCluster(
        pacing=PACING, broker={"shards": 2, "lease_s": 3.0, "beat_s": 0.2}
    ) as own:
        brokers = [own.broker("--ledger", own.ledger, shard=shard) for shard in (0, 1)]
        crowd = own.start(
            SamplersSpec(
                own.address,
                str(own.folder / "samplers.json"),
                count=SAMPLERS,
                ledger=own.ledger,
                every_s=0.2,
            )
        )
        learner = own.start(
            LearnerSpec(
                own.address,
                own.run,
                str(own.folder / "learner.json"),
                ledger=own.ledger,
                every_s=0.2,
            )
        )

        def settled() -> list[int]:
            return [one["settled"] for one in own.report(crowd).get("samplers", [])]

        def more(than: list[int]) -> int:
            return sum(now > before for now, before in zip(settled(), than, strict=True))

        def all_since(before: list[int]) -> bool:
            return more(before) == SAMPLERS

        def trains_on() -> None:
            """More than was granted and queued: so another has taken over the share of the dead."""
            enough = own.report(learner)["version"] + 20 * (PACING["max_lag"] + 1)
            own.until(lambda: own.report(learner)["version"] > enough, "it trains")

        own.until(lambda: len(settled()) == SAMPLERS and all(settled()), "all are answered")
        for shard in (0, 1):
            own.end([brokers[shard]], signal.SIGKILL)
            trains_on()
            seen = settled()
            own.until(lambda: settled() != seen, "a later report")  # noqa: B023
            left = settled()
            trains_on()
            own.until(functools.partial(more, left), "those of the other broker play")
            assert more(left) < SAMPLERS, "and no other"
            brokers[shard] = own.broker("--ledger", own.ledger, shard=shard)
            back = settled()
            own.until(functools.partial(all_since, back), "all play again")
        own.end([crowd])
        own.end([learner])
        own.end(brokers)
        account = own.account()
    assert account.exact(), account
    assert (account.in_flight, account.twice, account.untrue) == (0, 0, 0)
    assert account.outcomes["abandoned"] < 2 * BATCH


@pytest.mark.slow
@pytest.mark.processes
def test_train_runs_them_all_and_brings_one_back(place: Place) -> None:
    train = place.train("--stop-steps", "100000", "--set", "stop.return=none", *SHARDS)
    place.trains(100)
    (pid,) = (pid for pid, name in process_names(place.alive()).items() if name == "broker-1")
    os.kill(pid, signal.SIGKILL)
    assert train.ends() == 0, train.text()
    assert "broker-1" in train.text()
    place.nothing_is_left()
    account = place.account()
    assert account.exact() and not account.twice
    assert {path.name for path in place.out.glob("broker*.json")} == {
        "broker.json",
        "broker-1.json",
    }
    unrolls = place.summary()["unrolls"]
    assert unrolls["generated"] == account.generated == sum(account.outcomes.values())


def test_a_learner_speaks_with_all_of_them_or_none(place: Place) -> None:
    learner = place.learner("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=2")
    assert learner.ends() == 2
    assert "--broker names 1 of the run's brokers, which are 2 (broker.shards)" in learner.text()


def test_brokers_and_learner_must_agree_on_how_many_there_are(place: Place) -> None:
    place.broker()
    shards = ("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=2")
    learner = place.learner(*shards, broker=f"{place.ipc},{place.ipc}.1")
    assert learner.ends() == 2
    refused = "your run has broker.shards = 2, this broker was started with 1"
    assert refused in learner.text()


def test_one_broker_under_two_names_is_found_out(place: Place) -> None:
    shards = ("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=2")
    place.broker(*shards)
    other = f"{place.ipc}.again"
    Path(other.removeprefix("ipc://")).symlink_to(place.ipc.removeprefix("ipc://"))
    learner = place.learner(*shards, broker=f"{place.ipc},{other}")
    assert learner.ends() == 2, learner.text()
    assert f"{place.ipc} and {other} are one broker" in learner.text()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("what", ["actor", "node", "evaluate"])
def test_who_has_lost_its_broker_for_good_goes_to_another(place: Place, what: str) -> None:
    """Joins there as somebody new; what it had under way is given up, and nothing is trained
    twice, though the old broker comes back and has some of it."""
    shards = ("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=2")
    names = (place.ipc, f"{place.ipc}.1")
    brokers = [place.broker(*shards, bind=name) for name in names]
    learner = place.learner(*shards, *ENDLESS, broker=",".join(names))
    for broker in brokers:
        broker.says("run small at")  # both answer: else a name's choice may be another later
    # One of a name that leads it to the second.
    name = next(
        f"far{n}"
        for n in itertools.count()
        if several.choose(",".join(names), f"far{n}") == names[1]
    )
    ledger = ("--ledger", str(place.ledger))
    words = {"actor": ledger, "node": ("--samplers", "1", *ledger), "evaluate": ()}[what]
    far = place.headrace(what, *words, "--name", name, "--broker", ",".join(names), cold=True)
    near = place.actor(broker=names[0])
    brokers[1].says(f"{name}(-0)? joins")
    place.trains(20)
    brokers[1].kill()
    far.says("is gone since 12 s, and another of the run answers")
    brokers[0].says(f"{name}(-0)? joins")
    place.trains(20)
    back = place.broker(*shards, bind=names[1])
    learner.says(f"of each step: 2 from {names[0]}")
    place.trains(20)
    assert [process.term() for process in (far, near, learner, brokers[0], back)] == [0] * 5
    place.nothing_is_left()
    account = place.account()
    assert account.exact(), account
    assert (account.in_flight, account.twice) == (0, 0)


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_and_two_brokers_go_on_without_one(place: Place) -> None:
    """Each rank needs half of every batch, and each broker has half of it for both."""
    shards = ("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=4")
    names = [place.ipc, f"{place.ipc}.1"]
    brokers = [place.broker(*shards, bind=names[0]), place.broker(*shards, bind=names[1])]
    ranks = place.two_ranks(*shards, *ENDLESS, broker=",".join(names))
    for name in names:
        place.actor(broker=name)
    place.trains(60)
    brokers[1].kill()
    place.trains(200)  # more than it had given out
    brokers[1] = place.broker(*shards, bind=names[1])
    place.trains(100)
    for rank in ranks:
        rank.term()
    account = place.account()
    assert account.exact() and not account.twice
