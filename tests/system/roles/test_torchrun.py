"""Two learner ranks under torchrun: they train as one, die as one, and come back."""

import os
import re
import signal
import time

import pytest
import yaml  # type: ignore[import-untyped]

from headrace.launch import cli
from tests import ports
from tests.system.conftest import RUN, Place, Process, until


def torchrun(place: Place, *arguments: str) -> Process:
    return place.module(
        "headrace.launch.torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "headrace.launch.learner",
        place.run,
        "--broker",
        place.ipc,
        "--out",
        str(place.out),
        "--ledger",
        str(place.ledger),
        *arguments,
    )


def ranks(place: Place) -> list[int]:
    """Process ids of the two ranks, rank 0 first."""

    def look() -> list[int] | None:
        found = sorted(
            pid
            for pid, command in place.alive().items()
            if "headrace.launch.learner" in command and "headrace.launch.torchrun" not in command
        )
        return found if len(found) == 2 else None

    pids: list[int] = until(look, "two ranks")
    return sorted(pids, key=rank_of)


def rank_of(pid: int) -> int:
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # no file of ours
        found = re.search(rb"(?:^|\0)RANK=(\d+)", file.read())
    assert found
    return int(found[1])


def journals(place: Place) -> list[int]:
    """Trained unrolls by journal."""
    return [
        sum(line.startswith("T ") for line in path.read_text().splitlines())
        for path in sorted(place.ledger.glob("learner-*.log"))
    ]


# Each rank has a copy of the network, or a part of it, or its device decides on the steps.
HOW = pytest.mark.parametrize("how", ["", "shard = true", "graph = true"])


def write_run(place: Place, how: str) -> None:
    """Writes the run; where the device decides, with advantages that ranks need not share."""
    run = RUN
    if "graph" in how:
        run = run.replace("normalise_advantages = true", 'normalise_advantages = "running"')
    place.toml("run.toml", f"{run}\n[learner]\n{how}\n")


@HOW
def test_two_ranks_train_as_one_policy(place: Place, how: str) -> None:
    write_run(place, how)
    broker, group = place.broker(), torchrun(place, "--set", "stop.steps=2000")
    actors = [place.actor(), place.actor()]
    assert group.ends() == 0, group.text()
    for actor in actors:
        assert actor.ends() == 0, actor.text()
    assert broker.term() == 0
    for process in (broker, group, *actors):
        assert "Traceback" not in process.text()
    assert "learner.graph: " not in group.text()  # else: why the host decides
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice, account.in_flight) == (0, 0, 0, 0)
    first, second = journals(place)
    assert first == second > 0  # B = 2: one unroll a rank and step
    last = place.history()[-1]
    assert last["version"] == first
    late = "graph" in how  # a step that was under way at the goal counts, too
    assert 2000 <= last["trained_steps"] < 2064 + 64 * late
    assert place.checkpoints()
    # Whoever keeps it alive starts it again: that ends well, and at once.
    again = place.two_ranks("--resume")
    assert [rank.ends() for rank in again] == [0, 0], again[0].text()
    assert [rank.text().count("run is complete: ") for rank in again] == [1, 0]
    place.nothing_is_left()


@HOW
def test_killing_a_rank_ends_the_group_and_it_comes_back(place: Place, how: str) -> None:
    """The second one; tests of restarts kill the first."""
    # Once in a hundred times gloo does not see a peer die. Then the time limit of its collectives
    # ends the other rank, and it must do so before torchrun does it without a word, after 30 s.
    write_run(place, f"rank_timeout_s = 10\n{how}")
    broker, group, actor = place.broker(), torchrun(place), place.actor()
    until(place.checkpoints, "a checkpoint")
    place.trains(50)
    seen = place.history()[-1]
    began = time.monotonic()
    os.kill(ranks(place)[1], signal.SIGKILL)
    assert group.ends() in (1, 128 + signal.SIGKILL)  # whichever rank's end torchrun saw first
    assert time.monotonic() - began < 60
    assert re.search(r"ERROR rank \d: .*another rank is gone or stuck", group.text()), group.text()
    assert "continues from its newest checkpoint" in group.text()
    until(
        lambda: not [c for c in place.alive().values() if "headrace.launch.learner" in c],
        "no rank left",
    )

    newest = int(place.checkpoints()[-1].name)
    again = place.two_ranks("--resume")
    assert [int(rank.says(r"continues from \S+/(\d+)")[1]) for rank in again] == [newest] * 2
    place.trains(50)
    assert actor.term() == 0
    for rank in again:
        rank.signal(signal.SIGTERM)
    assert [rank.ends() for rank in again] == [0, 0]
    assert broker.term() == 0
    for process in (actor, broker, *again):
        assert "Traceback" not in process.text()
    assert place.history()[-1]["version"] > seen["version"]
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    assert account.twice <= 3 * 2


def test_killing_torchrun_ends_its_ranks_also_one_that_hangs(place: Place) -> None:
    """Else they keep the folder locked, and the next ones end with 2, which nobody starts again."""
    broker, group, actor = place.broker(), torchrun(place), place.actor()
    until(place.checkpoints, "a checkpoint")
    first, second = ranks(place)
    os.kill(first, signal.SIGSTOP)
    group.kill()
    until(lambda: not {first, second} & place.alive().keys(), "no rank left")
    newest = int(place.checkpoints()[-1].name)
    again = torchrun(place, "--resume")
    assert int(again.says(r"continues from \S+/(\d+)")[1]) == newest
    place.trains()
    assert again.term() == 0
    actor.kill()
    broker.kill()


def test_an_orderly_stop_is_a_success(place: Place) -> None:
    broker, group, actor = place.broker(), torchrun(place), place.actor()
    place.trains()
    assert group.term() == 0
    assert "Traceback" not in group.text()
    assert place.checkpoints()
    actor.kill()
    broker.kill()


def learner_job(place: Place) -> Process:
    """The learner's container of `headrace units kubernetes`, with places here for those there."""
    there = place.folder / "k8s"
    words = ["units", "kubernetes", "--run", place.run, "--out", str(there)]
    assert cli.main(words) == 0
    objects = yaml.safe_load_all((there / "base/headrace.yaml").read_text())
    (job,) = (one for one in objects if one["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    places = {
        r"\$\(JOB_COMPLETION_INDEX\)": "0",
        "--master-addr=.*": "--master-addr=127.0.0.1",
        "--master-port=.*": f"--master-port={ports.free()}",
        "/run-file/.*": place.run,
        "--broker=.*": f"--broker={place.ipc}",
        "--out=.*": f"--out={place.out}",
        "--ledger=.*": f"--ledger={place.ledger}",
        "--metrics-host=.*": "--metrics-host=127.0.0.1",
        "--metrics-port=.*": f"--metrics-port={ports.free()}",
    }
    args = [word for word in container["args"] if not word.startswith("--key=")]
    for found, here in places.items():
        assert [re.search(found, word) for word in args].count(None) == len(args) - 1, found
        args = [re.sub(found, here, word) for word in args]
    env = {one["name"]: one["value"] for one in container["env"]}
    return place.module("headrace.launch.torchrun", *args, env=env)


def test_a_kubernetes_job_is_done_when_the_run_is_and_only_then(place: Place) -> None:
    """To a Job a 0 means done: a pod that was asked to go must not say it, nor a second one that
    finds the goal reached wait for samplers that have left."""
    place.toml("run.toml", RUN + "\n[stop]\nreturn = 1e6\n")
    broker, first, actor = place.broker(), learner_job(place), place.actor()
    place.trains()
    assert first.term() == 143, first.text()
    assert place.checkpoints()

    place.toml("run.toml", RUN + "\n[stop]\nreturn = 5.0\n")  # any play of CartPole has more
    assert learner_job(place).ends() == 0
    assert actor.ends() == 0
    assert broker.term() == 0
    version = place.history()[-1]["version"]

    again = learner_job(place)  # there is not even a broker
    assert again.ends() == 0, again.text()
    assert again.text().count("run is complete: its mean return is") == 1
    assert place.history()[-1]["version"] == version
    place.nothing_is_left()


def test_a_rank_count_that_does_not_divide_the_batch(place: Place) -> None:
    for rank in place.two_ranks("--set", "pacing.batch_unrolls=3"):
        assert rank.ends() == 2
        assert "pacing.batch_unrolls = 3 cannot be shared by 2 ranks" in rank.text()
        assert "multiple of 2" in rank.text()


def test_a_rank_that_waits_for_the_others_ends_when_it_is_asked(place: Place) -> None:
    """It waits inside torch; torchrun ends such ranks when another one fails."""
    (rank,) = place.two_ranks(start="0")
    rank.says("learner is starting")
    rank.signal(signal.SIGTERM)
    assert rank.ends(timeout_s=10) == -signal.SIGTERM, rank.text()
