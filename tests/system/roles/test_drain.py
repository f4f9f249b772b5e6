"""SIGTERM of each role in a run that goes on: a clean end within ten seconds, and nothing lost."""

from tests.system.conftest import Place
from tests.system.harness.chaos import System
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import tally

TIMES = pick(3, 50)


def test_every_role_ends_cleanly_and_loses_nothing(place: Place, tcp: str) -> None:
    """A sampler, the learner and the broker are asked to end in turn, each while the others work,
    and started again. A sampler hears of everything it sent before it leaves."""
    system = System(place, tcp, samplers=2)
    longest = {"actor-0": 0.0, "learner": 0.0, "broker": 0.0}
    left: set[str] = set()  # journals of samplers that were asked to end in mid run
    for _ in range(TIMES):
        for name in longest:
            if name == "actor-0":
                left.add(system.roles[name].journal(place.ledger))
            longest[name] = max(longest[name], system.roles[name].term())
            system.start(name)
            place.trains(30)
    lost, survivors = system.unsettled(), system.survivors()
    system.finish()
    found, account = tally(place.ledger), place.account()
    given_up = sum(found.generated[key] in left for key in found.given_up)
    say(
        "SIGTERM",
        faults=3 * TIMES,
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
        given_up=given_up,
        sampler_s=longest["actor-0"],
        learner_s=longest["learner"],
        broker_s=longest["broker"],
    )
    assert found.journals() <= survivors | left
    assert lost == set()
    assert found.lost(found.journals()) == []
    assert given_up == 0
    assert (found.untrue(), found.ghosts(), found.twice(), found.outcomes()["shed"]) == (0, 0, 0, 0)
    assert (account.unaccounted(), account.untrue) == (0, 0)
    assert max(longest.values()) <= 10
