"""The short cut: an environment's thread asks the network itself, and the unroll is the same.

`_reply` is called as the threads call it: with the network held, once the frame holds a step.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from headrace.actors.acting.policy import Policy
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.config import EnvConfig
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.envs.make import probe
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.stepper import EnvsSpec, Frame, Stepper
from headrace.actors.stepping.threads import ThreadStepper
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Episodes
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Spaces, unroll_fields
from headrace.learner.weights import FlatWeights, layout_digest
from tests.actors import test_sampler

SEED = 100
LENGTH = 5
PATIENCE_S = 20.0  # only a hang reaches it


class Gate:
    """An environment stops here until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def passed(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE_S)


class Plan:
    """What the environments of one test do, told before they begin. A step is (column, how often
    it was made again, steps it has taken in that life)."""

    def __init__(self) -> None:
        self.episode = 0  # its length; 0 = endless
        self.raises: set[tuple[int, int, int]] = set()
        self.gates: dict[tuple[int, int, int], Gate] = {}
        self.began: list[tuple[int, int, int]] = []  # steps
        self.wrong: list[str] = []  # actions that did not answer the row before

    def gate(self, *at: int) -> Gate:
        column, life, steps = at
        return self.gates.setdefault((column, life, steps), Gate())


PLAN = Plan()


@pytest.fixture(autouse=True)
def plan() -> Iterator[Plan]:
    global PLAN
    PLAN = Plan()
    yield PLAN
    for gate in PLAN.gates.values():
        gate.opened.set()


class Counting(gymnasium.Env[NDArray[np.float32], Any]):
    """Shows (column, life, steps of that life); wants an action that was made of just that."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1e9, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.plan, self.column, self.life, self.steps, self.at = PLAN, -1, 0, 0, 0

    def seen(self) -> NDArray[np.float32]:
        return np.array([self.column, self.life, self.steps], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        del options
        if seed is not None:
            self.life, self.column = divmod(seed - SEED, 1_000_003)
        self.at = 0
        return self.seen(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        plan, here = self.plan, (self.column, self.life, self.steps)
        plan.began.append(here)
        if action >= 0 and action != code(*here):
            plan.wrong.append(f"{action} at {here}")
        if here in plan.gates:
            plan.gates[here].passed()
        if here in plan.raises:
            raise RuntimeError("out of oil")
        self.steps += 1
        self.at += 1
        return self.seen(), float(self.steps), self.at == plan.episode, False, {}


def code(column: float, life: float, steps: float) -> int:
    return int(100_000 * column + 10_000 * life + steps)


class Coder:
    """A policy whose action is the row that it saw, and whose log-probability its version."""

    memory, previous = 0, False

    def __init__(self, *, quick: bool) -> None:
        self.version = -1
        self.quick = quick
        self.settings = np.empty(0)
        self.threads: set[str] = set()  # who asked
        self.saw: list[int] = []  # the rows, as actions

    def load(self, blob: Blob) -> str:
        self.version = blob.announce.version
        return blob.announce.digest

    def act(
        self, obs: dict[str, NDArray[np.float32]], memory: None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], None]:
        self.threads.add(threading.current_thread().name)
        actions = np.array([code(*row) for row in obs["obs"].tolist()], np.int64)
        self.saw += actions.tolist()
        return actions, np.full(len(actions), -self.version, np.float32), memory


class Unroll(NamedTuple):
    """One environment's, as it was put."""

    seq: int
    versions: tuple[int, int]
    steps: int
    episodes: Episodes
    rows: list[list[float]]
    action: list[int]
    logp: list[float]
    reward: list[float]
    flags: list[int]


class End(test_sampler.End):
    """The broker's end; keeps whole unrolls, and says when there are more."""

    def __init__(self, groups: int, spaces: Spaces) -> None:
        super().__init__(groups, [])
        self.unrolls: list[list[Unroll]] = [[] for _ in range(groups)]
        self.changed = asyncio.Event()
        self.acting = -1  # with the weights of this version
        self.models: dict[int, Model] = {}  # by version; without them weights are a word
        self._fields = unroll_fields(spaces, length=LENGTH, envs=1)

    def weights(self, version: int) -> None:
        super().weights(version)
        if self.models:
            model = self.models[version]
            self.blob = Blob.of(version, layout_digest(model), FlatWeights(model).dump())

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        self.outbox.put(stream, finished)
        rows, action, logp, reward, flags = (
            np.frombuffer(buffer, field.dtype).reshape(field.shape)[:, 0].tolist()
            for field, buffer in zip(self._fields, finished.buffers, strict=True)
        )
        self.unrolls[stream].append(
            Unroll(
                self.outbox.last(stream),
                finished.versions,
                finished.steps,
                finished.episodes,
                rows,
                action,
                logp,
                reward,
                flags,
            )
        )
        self.changed.set()

    def acts_with(self, version: int, digest: str) -> None:
        super().acts_with(version, digest)
        self.acting = version
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks again at every unroll and at all new weights."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def has(self, *counts: int) -> None:
        """So many unrolls of each group."""
        await self.until(
            lambda: all(len(u) >= n for u, n in zip(self.unrolls, counts, strict=True))
        )
        assert tuple(map(len, self.unrolls)) == counts


def sampler_of(end: End, stepper: Stepper, policy: object, length: int = LENGTH) -> Sampler:
    return Sampler(
        end=cast(SamplerEnd, end),
        stepper=stepper,
        policy=cast(Policy, policy),
        length=length,
        batching_wait=BatchingWait(limit_s=0.0),
        crash_budget=CrashBudget("Counting", per_hour=3),
        metrics=SamplerMetrics(CollectorRegistry()),
    )


class Scene:
    """A sampler over real threads."""

    def __init__(
        self, groups: int = 1, *, quick: bool = True, policy: object = None, timeout_s: float = 60.0
    ) -> None:
        env = EnvConfig(f"{__name__}:Counting")
        made = EnvsSpec(env, probe(env), groups, envs=1, seed=SEED)
        self.stepper = ThreadStepper(made, timeout_s=timeout_s)
        self.end = End(groups, self.stepper.spaces)
        self.policy = policy or Coder(quick=quick)
        self.sampler = sampler_of(self.end, self.stepper, self.policy)
        self.metrics = self.sampler.metrics
        self.groups = groups
        self.upto = 0  # unrolls of each group that were granted
        self.threads: set[threading.Thread] = set()  # the environments'

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        before = set(threading.enumerate())
        try:
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                task = group.create_task(self.sampler.run())
                self.end.weights(0)
                await self.end.until(lambda: self.end.acting == 0)
                self.threads = {t for t in threading.enumerate() if t.name.startswith("env-")}
                self.threads -= before
                yield task
                task.cancel()
        finally:
            self.stepper.close()

    async def plays(self, count: int) -> None:
        """So many further unrolls of each group; then all are parked."""
        self.upto += count
        self.end.grant(*((group, self.upto) for group in range(self.groups)))
        await self.end.has(*[self.upto] * self.groups)


def played(*, quick: bool, groups: int = 1, count: int = 4) -> Scene:
    """To the end, with so many unrolls of each group."""
    made: list[Scene] = []

    async def main() -> None:
        scene = Scene(groups, quick=quick)
        made.append(scene)
        async with scene.running():
            await scene.plays(count)

    asyncio.run(main())
    return made[0]


def is_whole(unrolls: list[Unroll]) -> None:
    """All there, in order, each begins where the one before ended, and every live step leads from
    the row that was acted on to the next row of the same environment."""
    assert [unroll.seq for unroll in unrolls] == list(range(len(unrolls)))
    for before, after in pairwise(unrolls):
        assert after.rows[0] == before.rows[-1]
    for unroll in unrolls:
        assert unroll.action == [code(*row) for row in unroll.rows[:-1]]
        assert unroll.steps == sum(not flags & DEAD for flags in unroll.flags)
        for t, flags in enumerate(unroll.flags):
            (column, life, steps), then = unroll.rows[t], unroll.rows[t + 1]
            if not flags & DEAD:
                assert then == [column, life, steps + 1]
                assert unroll.reward[t] == steps + 1
            else:
                assert unroll.reward[t] == 0.0


# ---- the same unrolls ---------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_unrolls_are_whole_whoever_asks_the_network(quick: bool, plan: Plan) -> None:
    scene = played(quick=quick, groups=3, count=20)
    assert plan.wrong == []
    for group, unrolls in enumerate(scene.end.unrolls):
        is_whole(unrolls)
        assert {row[0] for unroll in unrolls for row in unroll.rows} == {group}
        assert [unroll.rows[0][2] for unroll in unrolls] == [LENGTH * n for n in range(20)]
    asked = cast(Coder, scene.policy).threads
    mine = {"env-0", "env-1", "env-2"}
    # An unroll's first action is the event loop's, the others are the environment's own.
    assert (asked & mine == mine) if quick else not asked & mine
    assert scene.metrics.rows == 3 * 20 * LENGTH
    assert (scene.metrics.replies_s > 0) is quick


def test_the_short_cut_changes_nothing(plan: Plan) -> None:
    """Episodes of 7 steps in unrolls of 5, and two failures."""
    plan.episode = 7
    plan.raises = {(0, 0, 11), (1, 0, 3)}
    quick = played(quick=True, groups=2, count=12)
    long = played(quick=False, groups=2, count=12)
    assert quick.end.unrolls == long.end.unrolls
    assert plan.wrong == []
    assert quick.sampler.crash_budget.count == long.sampler.crash_budget.count == {"step": 2}
    for unrolls in quick.end.unrolls:
        is_whole(unrolls)
        assert {TERMINATED, DEAD, TRUNCATED} < {flags for u in unrolls for flags in u.flags}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("at", range(5, 10))
def test_a_failed_step_is_dead_and_the_one_before_it_truncated(
    at: int, quick: bool, plan: Plan
) -> None:
    """At every place of the second unroll, its first and its last step too."""
    plan.raises = {(0, 0, at)}
    scene = played(quick=quick, count=3)
    unrolls = scene.end.unrolls[0]
    is_whole(unrolls)
    t = at - LENGTH
    expected = [0] * LENGTH
    expected[t] = DEAD
    if t:  # the unroll before has left already, and nothing in it is wrong
        expected[t - 1] = TRUNCATED
    assert [unroll.flags for unroll in unrolls] == [[0] * LENGTH, expected, [0] * LENGTH]
    # The last true observation is acted on and not trained on; then another life begins.
    assert unrolls[1].rows[t] == [0, 0, at]
    assert unrolls[1].rows[t + 1] == [0, 1, 0]
    assert unrolls[1].episodes == ((0, sum(range(at + 1)), at),)
    assert unrolls[1].steps == LENGTH - 1
    assert scene.sampler.crash_budget.count == {"step": 1}


# ---- weights ------------------------------------------------------------------------------------


async def new_weights_in_the_second_unroll(scene: Scene, gate: Gate) -> None:
    """They come while its third step is on its way."""
    async with scene.running():
        scene.end.grant((0, 3))
        await gate.is_reached()
        scene.end.weights(1)
        await scene.end.until(lambda: scene.end.acting == 1)
        gate.opened.set()
        await scene.end.has(3)


@pytest.mark.parametrize("quick", [True, False])
def test_new_weights_answer_from_the_next_step_on(quick: bool, plan: Plan) -> None:
    gate = plan.gate(0, 0, LENGTH + 2)

    async def main() -> None:
        scene = Scene(quick=quick)
        await new_weights_in_the_second_unroll(scene, gate)
        unrolls = scene.end.unrolls[0]
        is_whole(unrolls)
        assert [unroll.versions for unroll in unrolls] == [(0, 0), (0, 1), (1, 1)]
        # The log-probability tells the version that chose.
        assert [u.logp for u in unrolls] == [[0.0] * 5, [0.0] * 3 + [-1.0] * 2, [-1.0] * 5]

    asyncio.run(main())


def network(spaces: Spaces, seed: int) -> Model:
    """With an opinion of its own: a fresh one likes both actions alike."""
    model = build(ModelConfig(hidden=(8,)), spaces, seed=seed)
    with torch.no_grad():
        model.policy_head.bias[1] = seed
    return model


def log_probs(model: Model, unroll: Unroll) -> list[float]:
    with torch.no_grad():
        logits, _ = model.policy({"obs": torch.tensor(unroll.rows[:-1])})
        every = torch.log_softmax(logits.double(), dim=-1)
    return [float(row[action]) for row, action in zip(every, unroll.action, strict=True)]


def test_log_probs_are_those_of_the_rows_and_the_weights(plan: Plan) -> None:
    gate = plan.gate(0, 0, LENGTH + 2)

    async def main() -> None:
        scene = Scene()
        spaces = scene.stepper.spaces
        policy = Policy(ModelConfig(hidden=(8,)), spaces, seed=3)
        assert policy.quick
        scene = Scene(policy=policy)
        models = scene.end.models = {0: network(spaces, 1), 1: network(spaces, 2)}
        await new_weights_in_the_second_unroll(scene, gate)
        first, second, third = scene.end.unrolls[0]
        both = log_probs(models[0], second)[:3] + log_probs(models[1], second)[3:]
        for unroll, expected in (
            (first, log_probs(models[0], first)),
            (second, both),
            (third, log_probs(models[1], third)),
        ):
            assert unroll.logp == pytest.approx(expected, abs=1e-5)
        # Or the test could not tell one from the other.
        assert log_probs(models[0], third) != pytest.approx(third.logp, abs=1e-2)

    asyncio.run(main())


# ---- credit, the end, and one that wakes up late ------------------------------------------------


def test_without_credit_a_group_is_parked_after_its_last_step() -> None:
    async def main() -> None:
        scene = Scene(groups=2)
        policy = cast(Coder, scene.policy)
        async with scene.running():
            scene.end.grant((0, 1), (1, 3))
            await scene.end.has(1, 3)
            rows = [code(0, 0, t) for t in range(5)] + [code(1, 0, t) for t in range(15)]
            assert sorted(policy.saw) == rows
            scene.end.grant((0, 2))
            await scene.end.has(2, 3)
            assert sorted(policy.saw) == sorted([*rows, *(code(0, 0, t) for t in range(5, 10))])
        for unrolls in scene.end.unrolls:
            is_whole(unrolls)

    asyncio.run(main())


def test_the_end_of_the_run_ends_the_threads_after_the_step_they_are_at(plan: Plan) -> None:
    gates = [plan.gate(column, 0, LENGTH + 2) for column in range(2)]

    async def main() -> None:
        scene = Scene(groups=2)
        async with scene.running() as task:
            scene.end.grant((0, 1 << 40), (1, 1 << 40))
            for gate in gates:
                await gate.is_reached()
            saw = list(cast(Coder, scene.policy).saw)
            scene.end.end()
            await task
            for gate in gates:
                gate.opened.set()
        assert len(scene.threads) == 2
        assert not any(thread.is_alive() for thread in scene.threads)
        assert cast(Coder, scene.policy).saw == saw
        assert [len(unrolls) for unrolls in scene.end.unrolls] == [1, 1]

    asyncio.run(main())


@pytest.mark.slow
def test_a_thread_that_was_told_to_end_takes_no_further_step(plan: Plan) -> None:
    """Asked to stop, with the run not over: close() waits no longer than it says."""
    gate = plan.gate(0, 0, LENGTH + 2)

    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.end.grant((0, 3))
            await gate.is_reached()
        gate.opened.set()
        (thread,) = scene.threads
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()
        assert plan.began == [(0, 0, t) for t in range(LENGTH + 3)]

    asyncio.run(main())


def acts_with(end: End, version: int) -> bool:
    return end.acting == version


def test_threads_that_answer_themselves_leave_the_loop_its_turns() -> None:
    """Weights, credit and the end reach a sampler whose environments never wait."""

    async def main() -> None:
        scene = Scene(groups=4)
        async with scene.running() as task:
            scene.end.grant(*((group, 1 << 40) for group in range(4)))
            for version in range(1, 20):
                scene.end.weights(version)
                await scene.end.until(partial(acts_with, scene.end, version))
            scene.end.end()
            await task
        assert not any(thread.is_alive() for thread in scene.threads)
        for unrolls in scene.end.unrolls:
            is_whole(unrolls)
            bounds = [version for unroll in unrolls for version in unroll.versions]
            assert bounds == sorted(bounds)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("parked", [False, True])
def test_a_thread_that_was_given_up_never_touches_an_unroll(parked: bool, plan: Plan) -> None:
    """It wakes up in the middle of its follower's step, or while that one's last row waits in the
    frame for credit."""
    hung, follower = plan.gate(0, 0, LENGTH + 2), plan.gate(0, 1, LENGTH - 1)

    async def main() -> None:
        scene = Scene(timeout_s=1.0)
        async with scene.running():
            (old,) = scene.threads
            scene.end.grant((0, 2 if parked else 3))
            if parked:
                follower.opened.set()
                await scene.end.has(2)
            else:
                await follower.is_reached()
            hung.opened.set()
            await asyncio.to_thread(old.join, PATIENCE_S)
            assert not old.is_alive()
            follower.opened.set()
            scene.end.grant((0, 3))
            await scene.end.has(3)
        unrolls = scene.end.unrolls[0]
        is_whole(unrolls)
        assert plan.wrong == []
        assert scene.sampler.crash_budget.count == {"time-out": 1}
        assert [u.flags for u in unrolls] == [[0] * 5, [0, TRUNCATED, DEAD, 0, 0], [0] * 5]
        assert cast(Coder, scene.policy).saw == GIVEN_UP

    asyncio.run(main())


# Seven true steps, the one that hung, and then only the follower's.
GIVEN_UP = [*(code(0, 0, t) for t in range(8)), *(code(0, 1, t) for t in range(7))]


class Watched:
    """The network's lock; says when an environment's thread had it, or found it taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.settled = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._settles()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._settles()

    def _settles(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.settled.set()


def test_a_thread_that_wakes_up_while_it_is_given_up_touches_no_unroll(plan: Plan) -> None:
    """It may find the scratch frame before it finds another in its place."""
    hung = plan.gate(0, 0, LENGTH + 2)

    async def main() -> None:
        scene = Scene(timeout_s=0.5)
        lock = Watched()
        scene.sampler._network = cast(Any, lock)
        async with scene.running():
            group = scene.stepper._runners[0].group
            abandon = group.abandon

            def wakes(scratch: Frame) -> None:
                abandon(scratch)
                lock.settled.clear()
                hung.opened.set()
                assert lock.settled.wait(PATIENCE_S)

            group.abandon = wakes  # type: ignore[method-assign]
            scene.end.grant((0, 3))
            await scene.end.has(3)
        is_whole(scene.end.unrolls[0])
        assert cast(Coder, scene.policy).saw == GIVEN_UP

    asyncio.run(main())
