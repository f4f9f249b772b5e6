"""The storms of test_ends, written down by every process: at any moment of them the audit is exact,
and what a return to a checkpoint undid is told to the unroll."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.journal import audit, journal_files
from headrace.broker.journal import journal as journal_module
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.state import LedgerState
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Hello
from tests.broker.peers import test_ends
from tests.broker.peers.test_ends import Plan, World, check

begin = test_ends.begin


class Written(World):
    """Looks at its own ledgers now and then."""

    ledger: Path

    def __init__(self, plan: Plan) -> None:
        self.rolled_back = self.looks = 0
        super().__init__(plan)

    def kill_learner(self) -> None:
        self.rolled_back += len(self.group.trained) - self.group.undone
        super().kill_learner()

    def turn_broker(self) -> None:
        super().turn_broker()
        if self.rng.random() < 0.005:
            self.look()

    def look(self) -> audit.Account:
        account = audit.read(self.ledger)
        assert account.exact(), account
        boxes = [actor.box for actor in (*self.actors, *self.dead)]
        assert account.generated == sum(box.generated for box in boxes)
        assert account.rolled_back == self.rolled_back
        self.looks += 1
        return account


@pytest.fixture
def written(
    begin: Callable[[Plan], World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Plan], World]:
    """Every process of the world has a journal, which is folded again and again."""

    def make(plan: Plan) -> World:
        ledger = tmp_path / str(plan.seed)

        def actor(endpoint: str, **options: Any) -> SamplerEnd:
            options["journal"] = Journal(ledger, f"actor-{options['inc']}")
            return SamplerEnd(endpoint, **options)

        def learner(endpoint: str, hello: Hello, *more: Any, **options: Any) -> LearnerEnd:
            options["journal"] = Journal(ledger, f"learner-{hello.inc}")
            return LearnerEnd(endpoint, hello, *more, **options)

        def state(**options: Any) -> LedgerState:
            number = len(list(ledger.glob("broker-*.log"))) if ledger.exists() else 0
            return LedgerState(journal=Journal(ledger, f"broker-{number}"), **options)

        worlds: list[World] = []  # empty while it is made
        clock = SimpleNamespace(time=lambda: worlds[0].now if worlds else 100.0)
        monkeypatch.setattr(test_ends, "SamplerEnd", actor)
        monkeypatch.setattr(test_ends, "LearnerEnd", learner)
        monkeypatch.setattr(test_ends, "LedgerState", state)
        monkeypatch.setattr(Written, "ledger", ledger, raising=False)
        monkeypatch.setattr(journal_module, "time", clock)
        world = begin(plan)
        worlds.append(world)
        return world

    monkeypatch.setattr(journal_files, "LARGE", 3000)
    monkeypatch.setattr(test_ends, "World", Written)
    return make


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_a_storm_is_accounted_for_at_any_moment(
    block: int, written: Callable[[Plan], Written]
) -> None:
    looks = 0
    for seed in range(2000 + 3 * block, 2003 + 3 * block):
        world = written(Plan.of(seed))
        world.tell()
        check(world)
        account = world.look()
        looks += world.looks
        live = {actor.box.inc for actor in world.actors}
        for sampler in account.samplers:
            assert not sampler.ended
            assert sampler.in_flight == 0 or sampler.inc not in live
        assert account.outcomes["trained"] > 50
    assert looks > 3
