"""Unrolls that several groups fill side by side, each at its own speed."""

import asyncio
import random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.actors.acting.policy import Policy
from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import probe
from headrace.actors.stepping.stepper import EnvFailure
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import DEAD, TRUNCATED, Spaces, unroll_fields
from tests.actors import test_reply, test_sampler
from tests.actors.test_reply import Coder, Plan, code, sampler_of
from tests.actors.test_reply import plan as plan  # a fixture
from tests.actors.test_reply_order import Asking
from tests.actors.test_sampler import ENVS, LENGTH, SPACES, Script, scene

Arrays = list[NDArray[Any]]  # observations, actions, log-probabilities, rewards, flags


class WideEnd(test_reply.End):
    """The broker's end; keeps unrolls of many columns."""

    def __init__(
        self, streams: int, spaces: Spaces, *, length: int, envs: int, memory: int = 0
    ) -> None:
        super().__init__(streams, spaces)
        self.wide: list[list[Arrays]] = [[] for _ in range(streams)]
        self.finished: list[FinishedUnroll] = []
        self._fields = unroll_fields(spaces, length=length, envs=envs, memory=memory)

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        self.outbox.put(stream, finished)
        self.wide[stream].append(
            [
                np.frombuffer(buffer, field.dtype).reshape(field.shape)
                for field, buffer in zip(self._fields, finished.buffers, strict=True)
            ]
        )
        self.finished.append(finished)
        self.changed.set()


def scripted(kind: type[Script], *, streams: int, parts: int) -> tuple[test_sampler.Scene, WideEnd]:
    groups = streams * parts
    made = test_sampler.Scene(groups)
    end = WideEnd(streams, SPACES, length=LENGTH, envs=parts * ENVS)
    made.end = end
    made.stepper = kind(groups, made.events)
    made.stepper.frame.parts = parts
    made.sampler = sampler_of(end, made.stepper, made.policy, LENGTH)
    return made, end


@pytest.mark.parametrize("kind", [Script, Asking])
@given(streams=st.integers(1, 3), parts=st.integers(1, 4), seed=st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_every_column_is_in_order_whoever_is_ready_when(
    kind: type[Script], streams: int, parts: int, seed: int
) -> None:
    """No row is missing or double, and none stands in another's place."""
    unrolls, dice = 3, random.Random(seed)

    async def main() -> None:
        s, end = scripted(kind, streams=streams, parts=parts)
        s.stepper.pick = lambda sent: dice.sample(sent, dice.randint(0, len(sent)))
        async with s.running():
            end.weights(0)
            for upto in range(1, unrolls + 1):
                end.grant(*((stream, upto) for stream in range(streams)))
                await s.quiet()
                assert [len(put) for put in end.wide] == [upto] * streams
        # Nobody goes on before the unroll is sent and there is credit for the next.
        assert s.stepper.taken == [unrolls * LENGTH] * (streams * parts)
        for stream, put in enumerate(end.wide):
            groups = np.repeat(np.arange(stream * parts, (stream + 1) * parts), ENVS)
            for number, (obs, action, *_) in enumerate(put):
                steps = np.arange(number * LENGTH, (number + 1) * LENGTH + 1)[:, None]
                np.testing.assert_array_equal(obs[..., 0], np.broadcast_to(groups, obs.shape[:2]))
                np.testing.assert_array_equal(obs[..., 1], steps + 0 * groups)
                np.testing.assert_array_equal(action, 100 * groups + steps[:-1])

    asyncio.run(main())


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=20, deadline=None)
def test_together_all_act_at_once_whoever_was_ready_first(seed: int) -> None:
    async def main() -> None:
        s, end = scripted(Asking, streams=1, parts=3)
        s.sampler.together, dice = True, random.Random(seed)
        s.stepper.pick = lambda sent: dice.sample(sent, dice.randint(0, len(sent)))
        async with s.running():
            end.weights(0)
            end.grant((0, 2))
            await s.quiet()
        assert [len(put) for put in end.wide] == [2]
        assert [groups for _, groups, _ in s.of("act")] == [[0, 1, 2]] * 2 * LENGTH

    asyncio.run(main())


@scene()
async def test_what_is_not_finite_is_named_with_its_column_and_all_parts_play_again(
    _: test_sampler.Scene,
) -> None:
    class Bad(Script):
        """The second group of the second stream gives no number, once."""

        def ready(self) -> list[int]:
            groups = super().ready()
            if 3 in groups and self.taken[3] == 1:
                self.frame.reward[self.frame.columns(3)] = np.nan
            return groups

    s, end = scripted(Bad, streams=2, parts=2)
    failed: list[EnvFailure] = []
    s.sampler.crash_budget.spend = lambda failure, **_: failed.append(failure)  # type: ignore[method-assign]
    async with s.running():
        end.weights(0)
        end.grant((0, 1), (1, 1))
        await s.quiet()
    assert [(failure.env, failure.where) for failure in failed] == [(3 * ENVS, "values")]
    assert s.stepper.taken == [LENGTH, LENGTH, 2 * LENGTH, 2 * LENGTH]
    assert [obs[:, 0, 1].tolist() for ((obs, *_),) in end.wide] == [[0, 1, 2, 3], [3, 4, 5, 6]]


# ---- in threads ---------------------------------------------------------------------------------


def threaded(*, quick: bool = True, policy: object = None) -> tuple[test_reply.Scene, WideEnd]:
    """Three environments, which fill one unroll."""
    made = test_reply.Scene(3, quick=quick, policy=policy)
    memory = made.sampler.policy.memory
    end = WideEnd(1, made.stepper.spaces, length=test_reply.LENGTH, envs=3, memory=memory)
    made.end = end
    made.stepper.frame.parts = 3
    made.sampler = sampler_of(end, made.stepper, made.policy)
    return made, end


@pytest.mark.parametrize("quick", [True, False])
def test_one_that_is_slow_holds_up_the_others_only_at_the_end(quick: bool, plan: Plan) -> None:
    length = test_reply.LENGTH
    gate = plan.gate(1, 0, 2)
    plan.raises = {(2, 0, 7)}

    async def main() -> None:
        s, end = threaded(quick=quick)
        async with s.running():
            end.grant((0, 2))
            await gate.is_reached()
            while not {(0, 0, length - 1), (2, 0, length - 1)} <= set(plan.began):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            end.weights(1)
            await end.until(lambda: end.acting == 1)
            gate.opened.set()
            await end.until(lambda: len(end.wide[0]) == 2)
        assert plan.wrong == []
        # All are in their first unroll until the slow one has taken its last step.
        last = plan.began.index((1, 0, length - 1))
        assert max(steps for _, _, steps in plan.began[:last]) == length - 1
        (first, second), versions = end.wide[0], [one.versions for one in end.finished]
        assert versions == [(0, 1), (1, 1)]
        # The log-probability tells the version that chose.
        assert first[2].T.tolist() == [[0.0] * 5, [0.0] * 3 + [-1.0] * 2, [0.0] * 5]
        for obs, action, _, reward, flags in (first, second):
            assert action.tolist() == [[code(*row) for row in rows] for rows in obs[:-1].tolist()]
            live = flags & DEAD == 0
            assert (obs[1:, :, 2][live] == obs[:-1, :, 2][live] + 1).all()
            assert (reward[live] == obs[1:, :, 2][live]).all()
        np.testing.assert_array_equal(first[0][-1], second[0][0])
        assert second[4].T.tolist() == [[0] * 5, [0] * 5, [0, TRUNCATED, DEAD, 0, 0]]
        (episode,) = end.finished[1].episodes
        assert episode == (2, sum(range(8)), 7)
        assert cast(Coder, s.policy).saw.count(code(2, 0, 7)) == 1

    asyncio.run(main())


@pytest.mark.parametrize("core", ["none", "gru"])
def test_together_the_same_run_is_played_again(core: Any, plan: Plan) -> None:
    """The policy draws its actions; who is slow differs from run to run."""
    plan.episode = 7
    unrolls: list[Any] = []

    async def main(slow: int) -> None:
        gates = [plan.gate(slow, 0, steps) for steps in range(1, 9)]
        config = ModelConfig(hidden=(8,), core=core)
        spaces = probe(EnvConfig(f"{test_reply.__name__}:Counting"))
        s, end = threaded(policy=Policy(config, spaces, seed=3))
        s.sampler.together, end.models = True, {0: build(config, spaces, seed=4)}
        async with s.running():
            end.grant((0, 4))
            for gate in gates:
                await gate.is_reached()
                await asyncio.sleep(0.002)
                gate.opened.set()
            await end.until(lambda: len(end.wide[0]) == 4)
        plan.gates.clear()
        unrolls.append(end.wide[0])

    for slow in range(3):
        asyncio.run(main(slow))
    for again in unrolls[1:]:
        np.testing.assert_equal(again, unrolls[0])
