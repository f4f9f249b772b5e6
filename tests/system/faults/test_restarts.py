"""The learner is started again, with as many ranks, more, or fewer; and ranks that die or hang."""

import functools
import os
import signal
import time

import msgspec
import pytest
import zmq

from headrace.broker.protocol import messages
from headrace.launch.config import run_file
from headrace.learner.checkpoints import checkpoint
from headrace.learner.models.build import build
from headrace.learner.spaces import Spaces
from headrace.learner.weights import FlatWeights
from tests.system.conftest import Place, until
from tests.system.harness.chaos import IN_FLIGHT, RUN, Role, System, group
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import Key, tally

# Ranks of one life of the learner after another, and whether it ends by kill -9.
LIVES = pick(
    [(1, False), (2, True), (1, False)],
    [(1, False), (2, False), (1, True), (2, True), (2, False), (1, False)] * 5,
)
FAULTS = pick(
    [(0, "killed"), (1, "hung")], [(0, "killed"), (1, "killed"), (0, "hung"), (1, "hung")]
)
HANG_S = pick(12.0, 60.0)
TIMEOUT_S = pick(8.0, 45.0)  # learner.rank_timeout_s


def newest(place: Place) -> checkpoint.Checkpoint:
    """Reads every checkpoint there is: none may be half there."""
    for path in place.checkpoints():
        checkpoint.load(path)
    found = checkpoint.load_latest(place.out / "checkpoints")
    assert found is not None
    return found


def digest_of(place: Place, saved: checkpoint.Checkpoint) -> str:
    """Of the weights in a checkpoint, as samplers would compute it."""
    run = run_file.load(place.run, [])
    model = build(run.model, msgspec.convert(saved.state["spaces"], Spaces), seed=0)
    model.load_state_dict(saved.tensors["model"])
    return FlatWeights(model).digest()


def announced(address: str) -> messages.Announce:
    """The broker's present announcement: it tells everyone who subscribes."""
    host, _, port = address.rpartition(":")
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"{host}:{int(port) + 1}")
        assert socket.poll(30_000), "no announcement"
        message, _ = messages.decode(socket.recv_multipart())
    assert isinstance(message, messages.Announce)
    return message


def announces(address: str, digest: str) -> bool:
    return announced(address).digest == digest


def start(system: System, world: int) -> list[Role]:
    for name in [name for name in system.roles if name.startswith(("rank", "learner"))]:
        del system.roles[name]
    return [system.start("learner")] if world == 1 else group(system, world)


def end(ranks: list[Role], *, by_kill: bool) -> None:
    for role in ranks:
        if by_kill:
            role.kill()
        else:
            role.signal(signal.SIGTERM)
    for role in ranks:
        role.ends()


def test_it_goes_on_where_its_checkpoint_was(place: Place, tcp: str) -> None:
    """The learner lives several times, with one rank or two, and ends by SIGTERM or kill -9. Each
    life begins with the weights, the version and the counters of the newest checkpoint: seen while
    no sampler is there, so that nothing is trained meanwhile."""
    system = System(place, tcp, samplers=2, learners=0)
    journals: set[str] = set()
    lost: set[Key] = set()
    undone = kills = 0
    for at, (world, by_kill) in enumerate(LIVES):
        saved = newest(place) if at else None
        ranks = start(system, world)
        ranks[0].says("continues from" if at else "nothing to resume")
        if saved is not None:
            assert f"continues from {saved.path}" in ranks[0].text()
            highest = system.roles["broker"].metrics()["headrace_broker_version"]
            first = digest_of(place, saved)
            until(functools.partial(announces, tcp, first), "the checkpoint's weights")
            undone += int(highest) - saved.version
            for name in system.samplers:
                system.start(name)
        place.trains(40)
        until(place.checkpoints, "a checkpoint")
        lost |= system.unsettled()
        journals |= system.survivors()
        for name in system.samplers:
            system.roles[name].term()
        end(ranks, by_kill=by_kill)
        kills += by_kill
        if saved is not None and not by_kill:
            assert (
                newest(place).state["progress"]["trained_steps"]
                > saved.state["progress"]["trained_steps"]
            )
    for name in system.samplers:
        system.start(name)
    start(system, 1)
    place.trains(20)
    lost |= system.unsettled()
    journals |= system.survivors()
    system.finish()

    found, account = tally(place.ledger), place.account()
    say(
        "learner restarts",
        faults=len(LIVES),
        kills=kills,
        undone_versions=undone,
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
    )
    assert lost == set()
    assert found.lost(journals) == []
    assert (found.untrue(), found.ghosts()) == (0, 0)
    assert found.twice() <= kills * IN_FLIGHT
    assert (account.unaccounted(), account.untrue) == (0, 0)


@pytest.mark.parametrize(("victim", "fault"), FAULTS)
def test_a_rank_that_is_gone_or_stuck_ends_the_group(
    place: Place, tcp: str, victim: int, fault: str
) -> None:
    """One of two ranks is killed, or stopped for longer than a collective may take. The other one
    ends with a line that says so, no checkpoint is half there, and a new group goes on from it."""
    run = RUN + f"\n[learner]\nrank_timeout_s = {TIMEOUT_S}\n"
    system = System(place, tcp, samplers=2, learners=0, run=run)
    ranks = group(system, 2)
    until(place.checkpoints, "a checkpoint")
    place.trains(40)
    began = time.monotonic()
    gone, other = ranks[victim], ranks[1 - victim]
    if fault == "killed":
        gone.kill()
    else:
        gone.signal(signal.SIGSTOP)
    assert other.ends(timeout_s=TIMEOUT_S + 30) == 1
    noticed = time.monotonic() - began
    assert "another rank is gone or stuck" in other.text()
    if fault == "hung":
        time.sleep(max(0.0, began + HANG_S - time.monotonic()))
        os.kill(gone.pid, signal.SIGCONT)
        assert gone.ends() == 1
        assert "another rank is gone or stuck" in gone.text()
    version = newest(place).version
    system.all = [role for role in system.all if role not in ranks]
    start(system, 2)[0].says(f"checkpoints/{version:012d}")
    place.trains(40)
    lost = system.unsettled()
    system.finish()
    found = tally(place.ledger)
    say(
        f"rank {victim} {fault}",
        faults=1,
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
        noticed_s=noticed,
    )
    assert noticed <= TIMEOUT_S + 15
    assert lost == set()
    assert (found.untrue(), found.ghosts()) == (0, 0)
    assert found.twice() <= IN_FLIGHT
