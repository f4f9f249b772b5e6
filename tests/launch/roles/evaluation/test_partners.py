"""Tests who plays beside a policy that is evaluated, and with which weights."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from headrace.actors.acting.policy import Policy
from headrace.actors.config import EnvConfig
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.launch.roles.evaluation import partners
from headrace.launch.roles.evaluation.evaluation_loop import EvaluationLoop
from headrace.launch.roles.evaluation.evaluation_results import EvaluatorMetrics
from headrace.launch.roles.evaluation.partners import Partner, company
from headrace.learner.spaces import Spaces
from headrace.learner.weights import WeightsError
from tests.launch.roles.evaluation import test_evaluator
from tests.launch.roles.evaluation.test_evaluator import RUN, End, blob, turns

spaces, open_gate = test_evaluator.spaces, test_evaluator.open_gate  # fixtures


class OtherEnd(End):
    """Speaks with the broker of another policy."""

    link = SimpleNamespace(endpoint="ipc:///other")

    def __init__(self) -> None:
        super().__init__()
        self.opened: tuple[str, str] | None = None

    def open(self, spaces: tuple[str, str]) -> None:
        self.opened = spaces


def partner(end: End, spaces: Spaces) -> Partner:
    policy = Policy(RUN.model, spaces, seed=0, precision="float32")
    return Partner(cast(EvaluatorEnd, end), policy)


def test_newer_weights_are_waited_for(spaces: Spaces) -> None:
    async def main() -> tuple[End, Partner]:
        end = OtherEnd()
        one = partner(end, spaces)
        end.tell(blob=blob(spaces, 1), fetching=True)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(one.renew())
            await turns()
            assert one.policy.version == -1
            end.tell(blob=blob(spaces, 2), fetching=False)
        await one.renew()  # none have come since
        return end, one

    end, one = asyncio.run(main())
    assert (one.policy.version, end.acted, end.asked) == (2, [2], 2)


def test_a_broker_that_is_gone_holds_up_nobody(
    spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partners, "_PATIENCE_S", 0.01)

    async def main() -> None:
        end = OtherEnd()
        one = partner(end, spaces)
        with pytest.raises(WeightsError, match="no weights have come from ipc:///other"):
            await one.renew()
        end.tell(blob=blob(spaces, 3))
        await one.renew()
        end.tell(fetching=True)
        await one.renew()
        assert one.policy.version == 3

    asyncio.run(main())


def test_an_evaluation_without_partners_is_left_out_and_the_next_is_made(
    spaces: Spaces, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(partners, "_PATIENCE_S", 0.01)
    other, own = OtherEnd(), End()
    loop = EvaluationLoop(
        cast(EvaluatorEnd, own),
        RUN,
        spaces,
        out=None,
        metrics=EvaluatorMetrics(CollectorRegistry()),
        partners=[partner(other, spaces)],
    )

    async def main() -> None:
        await loop._evaluate(blob(spaces, 1))
        assert "version 1 is not evaluated: no weights have come" in caplog.text
        other.tell(blob=blob(spaces, 8))
        await loop._evaluate(blob(spaces, 2))

    asyncio.run(main())
    assert own.stats["version"] == 2 and other.acted == [8]


@pytest.mark.parametrize("trained", [("listener_*",), ("listener_0",)])
def test_all_others_are_seated(trained: tuple[str, ...]) -> None:
    kind = "headrace.actors.envs.toys.several_agents:Signals"
    nobody: dict[str, Any] = {} if trained == ("listener_*",) else {"listener_1": "random"}
    env = EnvConfig(
        id=kind, kwargs={"listeners": 2}, agents=("speaker",), others=nobody, metrics=()
    )
    run = msgspec.structs.replace(RUN, env=env)
    other = msgspec.structs.replace(run, env=msgspec.structs.replace(env, agents=trained))
    end = OtherEnd()
    learning, players = company(run, [(cast(EvaluatorEnd, end), other)], [], lambda _: None)
    assert [agent for one in players for agent in one.agents] == ["listener_0", "listener_1"]
    assert len(players) == 1 + len(nobody)
    assert [one.policy for one in learning] == [players[0].player]
    assert end.opened is not None and end.opened[0] == players[0].spaces.digest()
