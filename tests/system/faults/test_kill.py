"""kill -9 of any role, every 0.5 to 2 s: the broker, the learner, each of four samplers."""

import functools
import signal
import time
from random import Random

import pytest

from tests.system.conftest import Place, until
from tests.system.harness.chaos import BATCH, IN_FLIGHT, STREAMS, WINDOW, Role, System, script
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import tally
from tests.system.harness.watching import Progress

CASES = pick([(1, 8), (2, 8), (3, 8)], [(1, 60), (2, 60), (3, 60), (4, 600)])


@pytest.mark.parametrize(("seed", "seconds"), CASES)
def test_nothing_of_a_surviving_sampler_is_lost(
    place: Place, tcp: str, seed: int, seconds: int
) -> None:
    """Every role is killed again and again, sometimes two at once, and started again at once. What
    a surviving sampler made is trained on, or has another outcome; a killed one takes a few unrolls
    with it, at most its credit."""
    system = System(place, tcp, samplers=4)
    faults = script(Random(seed), system.samplers, seconds)
    progress, began = Progress(place), time.monotonic()
    for fault in faults:
        progress.wait(began + fault.at)
        system.kill(*fault.names)
    progress.wait(began + seconds)
    place.trains(50)
    progress.look()
    lost = system.unsettled()
    survivors = system.survivors()
    counters_agree(system)
    system.finish()

    found, account = tally(place.ledger), place.account()
    outcomes, kills = found.outcomes(), [name for fault in faults for name in fault.names]
    samplers = sum(name.startswith("actor") for name in kills)
    died = found.lost(found.journals() - survivors)
    say(
        "kill -9",
        seed=seed,
        faults=len(kills),
        learner=kills.count("learner"),
        broker=kills.count("broker"),
        samplers=samplers,
        generated=len(found.generated),
        **outcomes,
        lost=len(lost),
        died_with_samplers=len(died),
        untrue=found.untrue(),
        ghosts=found.ghosts(),
        twice=found.twice(),
        longest_stall_s=progress.longest_s,
        seconds=seconds,
    )
    assert lost == set()
    assert found.lost(survivors) == []
    assert outcomes["abandoned"] < BATCH  # the rest, when no more come
    for journal in found.journals() - survivors:
        assert len(found.lost({journal})) <= WINDOW * STREAMS
    assert (found.untrue(), found.ghosts(), outcomes["shed"], outcomes["rejected"]) == (0, 0, 0, 0)
    assert found.twice() <= kills.count("learner") * IN_FLIGHT
    assert progress.longest_s < 10
    assert (account.unaccounted(), account.untrue) == (0, 0)


def counters_agree(system: System) -> None:
    """With the learner asleep nothing moves after a moment; then what samplers count is, to the
    unroll, what their journals say."""
    learner, folder = system.roles["learner"], system.place.ledger
    learner.signal(signal.SIGSTOP)

    def counted(role: Role) -> tuple[float, float]:
        metrics = role.metrics()
        trained = metrics['headrace_actor_fragments_total{outcome="trained"}']
        return metrics["headrace_actor_generated_fragments_total"], trained

    def written(role: Role) -> tuple[float, float]:
        found = tally(folder, role.journal(folder))
        return len(found.generated), sum(how == "trained" for how in found.acked.values())

    def agree(role: Role) -> bool:
        return counted(role) == written(role)

    for name in system.samplers:
        role = system.roles[name]
        until(functools.partial(agree, role), f"counters of {name}")
    learner.signal(signal.SIGCONT)
