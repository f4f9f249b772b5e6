"""SIGSTOP of each role, shorter and longer than its lease: a process that sleeps, and wakes up."""

import signal
import time
from random import Random

from tests.system.conftest import Place, until
from tests.system.harness.chaos import BEAT_S, IN_FLIGHT, LEASE_S, RUN, Role, System, group
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import tally
from tests.system.harness.watching import Progress

# Of each role: below its lease, and above it.
NAPS = pick([(0.2, 0.8), (1.8, 2.6)], [(0.2, 1.0), (1.8, 4.0), (4.0, 30.0), (4.0, 30.0)])
# Seconds for a busy machine, on top of what is promised.
ROOM_S = 1.0
SEED = 1


def notices(system: System, name: str) -> bool:
    """Do the others know that this role sleeps?"""
    match name:
        case "broker":
            return all(
                "the broker at" in role.text() and "fell silent" in role.text()
                for role in system.roles.values()
                if role.name != "broker"
            )
        case "learner":  # nothing is leased to a learner that is given up
            return system.roles["broker"].metrics()["headrace_broker_leased_fragments"] == 0
        case _:
            return f"sampler {name} fell silent" in system.roles["broker"].text()


def made_by(place: Place, role: Role) -> int:
    return len(tally(place.ledger, role.journal(place.ledger)).generated)


def sleep(system: System, name: str, seconds: float) -> tuple[float, float]:
    """Stops it that long; (seconds until it was noticed, seconds until it is back in flow)."""
    role, place, noticed = system.roles[name], system.place, 0.0
    role.signal(signal.SIGSTOP)
    began = time.monotonic()
    if seconds > LEASE_S:
        until(lambda: notices(system, name), f"somebody notices that {name} sleeps")
        noticed = time.monotonic() - began
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    made = made_by(place, role) if name.startswith("actor") else 0
    woke = time.monotonic()
    role.signal(signal.SIGCONT)
    if made:
        until(lambda: made_by(place, role) > made, f"{name} goes on")
    place.trains(20)
    return noticed, time.monotonic() - woke


def test_a_role_that_sleeps_is_missed_and_comes_back(place: Place, tcp: str) -> None:
    """Broker, learner and one of two samplers are stopped in turn, in an order and for lengths that
    the seed says. Above the lease the others must notice, and nothing may be lost either way."""
    random = Random(SEED)
    # A peer that never fell silent must not look as if it had.
    naps = [
        (name, random.uniform(*nap)) for nap in NAPS for name in ("actor-0", "learner", "broker")
    ]
    system = System(place, tcp, samplers=2)
    progress, noticed, back = Progress(place), [], []
    for name, seconds in naps:
        late_s, flow_s = sleep(system, name, seconds)
        noticed.append(late_s)
        back.append(flow_s)
    progress.look()
    lost, survivors = system.unsettled(), system.survivors()
    system.finish()
    found, account = tally(place.ledger), place.account()
    say(
        "SIGSTOP",
        seed=SEED,
        faults=len(naps),
        asleep_s=sum(nap for _, nap in naps),
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
        noticed_s=max(noticed),
        back_s=max(back),
    )
    assert found.journals() == survivors
    assert lost == set()
    assert (found.untrue(), found.ghosts(), found.twice(), found.outcomes()["shed"]) == (0, 0, 0, 0)
    assert max(noticed) <= LEASE_S + BEAT_S + ROOM_S
    assert max(back) <= LEASE_S + ROOM_S + 5.0  # a lease, and the longest back-off
    assert (account.unaccounted(), account.untrue) == (0, 0)


def test_a_rank_that_sleeps_longer_than_its_lease(place: Place, tcp: str) -> None:
    """Of two ranks one is stopped for longer than its lease. What it held goes to the other one; it
    wakes up and trains on what it had taken into a batch: the known edge, at most what it held."""
    naps = pick([2.5], [2.5, 6.0, 10.0, 20.0, 30.0])
    system = System(place, tcp, samplers=2, run=RUN, learners=0)
    ranks: list[Role] = group(system, 2)
    place.trains(20)
    for at, seconds in enumerate(naps):
        rank = ranks[at % 2]
        rank.signal(signal.SIGSTOP)
        time.sleep(seconds)
        rank.signal(signal.SIGCONT)
        place.trains(100)
    lost = system.unsettled()
    system.finish()
    found, account = tally(place.ledger), place.account()
    say(
        "SIGSTOP of a rank",
        faults=len(naps),
        asleep_s=sum(naps),
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
    )
    assert lost == set()
    assert (found.untrue(), found.ghosts(), found.outcomes()["shed"]) == (0, 0, 0)
    assert found.twice() <= len(naps) * IN_FLIGHT
    assert (account.unaccounted(), account.untrue) == (0, 0)
