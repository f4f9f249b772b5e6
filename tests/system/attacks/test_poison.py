"""A sampler whose numbers no optimiser step survives, beside honest ones."""

import re
from pathlib import Path

import pytest

from tests.system.commands.test_metrics import by, port_of, scrape
from tests.system.conftest import RUN, Place, Process

POISONER = str(Path(__file__).with_name("poisoner.py"))


def poisoner(place: Place, value: str) -> Process:
    return place.python(
        POISONER,
        value,
        "actor",
        "--broker",
        place.ipc,
        "--ledger",
        str(place.ledger),
        "--name",
        "liar",
    )


def rejected(place: Place) -> dict[str, int]:
    """Unrolls that the learner rejected, by the name of their sampler."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    for path in place.ledger.glob("actor-*.log"):
        inc, name = re.findall(r"^P actor (\d+) (.+)$", path.read_text(), re.M)[0]
        names[inc], found[name] = name, 0
    for path in place.ledger.glob("learner-*.log"):
        for inc, lo, hi in re.findall(r"^R (\d+) \d+ (\d+) (\d+)$", path.read_text(), re.M):
            found[names[inc]] += int(hi) - int(lo)
    return found


@pytest.mark.parametrize(
    ("value", "bound", "reason"),
    [("3e38", "1e9", "reward"), ("3e38", "3.4e38", "step")],
    ids=["at the door", "in the step"],
)
def test_poison_costs_no_honest_unroll(place: Place, value: str, bound: str, reason: str) -> None:
    """Its sampler is thrown out. At the door, or, where the door lets it in, by the search for what
    no step survives: the square of a sum of such rewards is infinite."""
    place.run = place.toml("run.toml", RUN.replace("envs = 4", f"envs = 4\nlargest = {bound}"))
    broker, learner = place.broker(), place.learner("--metrics-port", "0")
    honest = place.actor("--name", "honest")
    place.trains(20)
    liar = poisoner(place, value)
    assert liar.ends() == 2, liar.text()
    assert "refused: too many of its latest unrolls could not be used" in liar.text()
    assert "sampler liar is thrown out" in broker.text()
    place.trains(100)
    counted = by(scrape(port_of(learner))["headrace_learner_rejected_fragments"], "reason")
    refused = rejected(place)
    assert refused["honest"] == 0
    assert 20 <= refused["liar"] == counted.pop(reason)
    assert not any(counted.values())
    for process in (honest, learner, broker):
        assert process.term() == 0, process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)
