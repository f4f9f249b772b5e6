"""The sampler between a broker's end and environments that do only what the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, Literal, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from headrace.actors.acting.policy import Policy
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.envs.convert import EnvError
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.stepper import EnvFailure, Frame, ThreadReply
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Ack, Limit, Outcome
from headrace.broker.weights.blobs import Blob
from headrace.learner.spaces import Leaf, Spaces, discrete, unroll_fields

SPACES = Spaces((Leaf("obs", "<f4", (2,)),), discrete(2))
LENGTH, ENVS = 3, 2
Event = tuple[Any, ...]
Put = tuple[int, int, tuple[int, int], NDArray[np.float32]]  # group, seq, versions, obs


class Bell(asyncio.Event):
    """News; says when somebody has gone to sleep until there is some."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()
        self.times = 0  # it has gone to sleep

    async def wait(self) -> Literal[True]:
        if not self.is_set():
            self.times += 1
            self.asleep.set()
        return await super().wait()


class Started(Outbox):
    """The real one; writes down every unroll that begins."""

    events: list[Event]

    def start(self, stream: int) -> int:
        seq = super().start(stream)
        self.events.append(("start", stream, seq))
        return seq


class End:
    """The broker's end as the sampler sees it."""

    def __init__(self, groups: int, events: list[Event]) -> None:
        self.outbox = Started(inc=1, streams=groups)
        self.outbox.events = events
        self.inc, self.journal = 1, Journal(None, "")
        self.news = Bell()
        self.blob: Blob | None = None
        self.over = ""
        self.bytes_sent = 0
        self.stats: dict[str, float] = {}
        self.waited = 0
        self.events = events
        self.puts: list[Put] = []

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        self.outbox.put(stream, finished)
        field = unroll_fields(SPACES, length=LENGTH, envs=ENVS)[0]
        obs = np.frombuffer(finished.buffers[0], np.float32).reshape(field.shape)
        seq = self.outbox.last(stream)
        self.puts.append((stream, seq, finished.versions, obs))
        self.events.append(("put", stream, seq))

    def take_blob(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def acts_with(self, version: int, digest: str) -> None:
        self.events.append(("acts", version, digest))

    # ---- what the broker does -----------------------------------------------------------------

    def weights(self, version: int) -> None:
        self.blob = Blob.of(version, "", b"w")
        self.news.set()

    def grant(self, *grants: tuple[int, int] | tuple[int, int, int]) -> None:
        """(group, unrolls below this seq) or (.., floor version)."""
        full = tuple((grant[0], grant[1], grant[2] if len(grant) > 2 else 0) for grant in grants)
        self.outbox.on_limit(Limit(full))
        self.news.set()

    def ack(self, *ranges: tuple[int, int, int]) -> None:
        self.outbox.on_ack(Ack(Outcome.TRAINED, ranges))
        self.news.set()

    def end(self) -> None:
        self.over = "the goal was reached"
        self.news.set()


class Script:
    """Environments whose observation is (group, steps taken); `pick` says which groups that were
    sent are ready."""

    def __init__(self, groups: int, events: list[Event]) -> None:
        self.spaces = SPACES
        self.frame = Frame.empty(SPACES, groups=groups, envs=ENVS)
        self.beside = 0
        self.events = events
        self.taken = [0] * groups
        self.sent: list[int] = []
        self.pick: Callable[[list[int]], list[int]] = lambda sent: list(sent)
        self.on_step: Callable[[int], None] = lambda _: None
        self.reward = 1.0
        self.flags = 0
        self.failed: list[EnvFailure] = []

    def start(self, news: asyncio.Event, reply: ThreadReply | None = None) -> None:
        assert reply is not None
        self.reply = reply
        self.events.append(("reset",))
        self.sent = list(range(self.frame.groups))
        self.news = news
        news.set()

    def send(self, group: int, actions: NDArray[np.int64]) -> None:
        assert group not in self.sent
        # The policy of these tests answers with the row that it saw.
        assert actions.tolist() == [100 * group + self.taken[group]] * ENVS
        self.events.append(("step", group))
        self.taken[group] += 1
        self.sent.append(group)
        self.news.set()
        self.on_step(sum(self.taken))

    def ready(self) -> list[int]:
        groups = self.pick(self.sent)
        for group in groups:
            self.sent.remove(group)
            columns = self.frame.columns(group)
            self.frame.obs["obs"][columns] = (group, self.taken[group])
            self.frame.reward[columns] = self.reward
            self.frame.flags[columns] = self.flags
        if self.sent:  # they come a moment later
            asyncio.get_running_loop().call_soon(self.news.set)
        return groups

    def failures(self) -> list[EnvFailure]:
        failed, self.failed = self.failed, []
        return failed

    def close(self) -> None:
        self.events.append(("close",))


class Echo:
    """A policy whose action is the row it saw: 100 * group + steps taken."""

    memory, previous = 0, False

    def __init__(self, events: list[Event]) -> None:
        self.version = -1
        self.quick = True
        self.settings = np.empty(0)
        self.events = events

    def load(self, blob: Blob) -> str:
        self.version = blob.announce.version
        self.events.append(("load", self.version))
        return blob.announce.digest

    def act(
        self, obs: dict[str, NDArray[np.float32]], memory: None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], None]:
        rows = obs["obs"]
        seen = (100 * rows[:, 0] + rows[:, 1]).astype(np.int64)
        self.events.append(("act", [int(group) for group in rows[::ENVS, 0]], self.version))
        return seen, np.zeros(len(rows), np.float32), memory


class Scene:
    """One sampler and everything around it."""

    def __init__(self, groups: int = 1) -> None:
        self.events: list[Event] = []
        self.end = End(groups, self.events)
        self.stepper = Script(groups, self.events)
        self.policy = Echo(self.events)
        self.metrics = SamplerMetrics(CollectorRegistry())
        self.batching_wait = BatchingWait(limit_s=0.0)
        self.sampler = Sampler(
            end=cast(SamplerEnd, self.end),
            stepper=self.stepper,
            policy=cast(Policy, self.policy),
            length=LENGTH,
            batching_wait=self.batching_wait,
            crash_budget=CrashBudget("Script-v0", per_hour=3),
            metrics=self.metrics,
        )

    def puts_rows(self) -> list[int]:
        """Steps taken, as the rows of the last unroll that was put tell it."""
        return [int(row[0, 1]) for row in self.end.puts[-1][3]]

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event[0] in kinds]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            task = group.create_task(self.sampler.run(), name="sampler")
            await self.quiet()
            yield task
            task.cancel()

    async def quiet(self) -> None:
        """Until the sampler has nothing to do without news."""
        news = self.end.news
        news.asleep.clear()
        await news.asleep.wait()
        while True:
            times = news.times
            for _ in range(3):  # an environment may be about to come
                await asyncio.sleep(0)
            if news.times == times and not news.is_set():
                return


def scene(groups: int = 1) -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], Any]:
    """The test is a coroutine that is given a scene of so many groups."""

    def wrap(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                await test(Scene(groups))

            asyncio.run(main())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return wrap


def follows(puts: Sequence[Put], group: int) -> None:
    """Every unroll of the group begins where the one before it ended; none twice, none left out."""
    mine = [put for put in puts if put[0] == group]
    assert [seq for _, seq, _, _ in mine] == list(range(len(mine)))
    for number, (_, _, _, obs) in enumerate(mine):
        first = number * LENGTH
        expected = [[[group, first + t]] * ENVS for t in range(LENGTH + 1)]
        assert obs.tolist() == expected


# ---- weights and credit ---------------------------------------------------------------------


@scene()
async def test_no_step_before_weights(s: Scene) -> None:
    async with s.running():
        s.end.grant((0, 5))
        await s.quiet()
        assert s.events == []
        s.end.weights(3)
        await s.quiet()
        digest = Blob.of(3, "", b"w").announce.digest
        assert s.events[:5] == [
            ("load", 3),
            ("acts", 3, digest),
            ("reset",),
            ("start", 0, 0),
            ("act", [0], 3),
        ]


@scene()
async def test_an_unroll_begins_only_with_credit_and_leaves_as_soon_as_it_is_full(s: Scene) -> None:
    async with s.running():
        s.end.weights(0)
        await s.quiet()
        assert s.of("start", "act", "step") == []
        s.end.grant((0, 1))
        await s.quiet()
        step = [("act", [0], 0), ("step", 0)]
        assert s.of("start", "act", "step", "put") == [
            ("start", 0, 0),
            *step,
            *step,
            *step,
            ("put", 0, 0),
        ]
        s.events.clear()
        s.end.grant((0, 3))
        await s.quiet()
        # Full, sent, and only then the next one: the policy is not asked in between.
        assert s.of("start", "act", "step", "put") == [
            ("start", 0, 1),
            *step,
            *step,
            *step,
            ("put", 0, 1),
            ("start", 0, 2),
            *step,
            *step,
            *step,
            ("put", 0, 2),
        ]
        follows(s.end.puts, 0)


@scene()
async def test_a_parked_unroll_is_sent_once_and_the_next_one_begins_with_its_last_row(
    s: Scene,
) -> None:
    async with s.running():
        s.end.weights(0)
        for upto in (1, 2, 3):
            s.end.grant((0, upto))
            await s.quiet()
            # News that changes nothing wakes it in vain.
            s.end.news.set()
            await s.quiet()
            assert [put[1] for put in s.end.puts] == list(range(upto))
        follows(s.end.puts, 0)
        assert s.stepper.taken == [3 * LENGTH]


@scene()
async def test_credit_may_ask_for_newer_weights(s: Scene) -> None:
    async with s.running():
        s.end.weights(1)
        s.end.grant((0, 1, 2))
        await s.quiet()
        assert s.of("start") == []
        s.end.weights(2)
        await s.quiet()
        assert [put[2] for put in s.end.puts] == [(2, 2)]


@scene()
async def test_waiting_is_booked_under_its_reason(s: Scene) -> None:
    waits: list[str] = []

    def waited(phase: str, seconds: float) -> None:
        assert seconds >= 0
        waits.append(phase)

    s.metrics.waited = waited  # type: ignore[method-assign]
    async with s.running():
        s.end.weights(1)
        await s.quiet()
        s.end.grant((0, 1, 2))
        await s.quiet()
        s.end.weights(2)
        await s.quiet()
        # Woken in vain, it waits again for the same.
        assert [phase for phase, _ in groupby(waits)][:3] == ["weights", "credit", "weights"]


@scene()
async def test_weights_are_taken_between_two_steps(s: Scene) -> None:
    s.stepper.on_step = lambda steps: s.end.weights(7) if steps == 2 else None
    async with s.running():
        s.end.weights(4)
        s.end.grant((0, 2))
        await s.quiet()
        assert s.of("act", "load") == [
            ("load", 4),
            ("act", [0], 4),
            ("act", [0], 4),
            ("load", 7),
            ("act", [0], 7),
            ("act", [0], 7),
            ("act", [0], 7),
            ("act", [0], 7),
        ]
        assert [version for _, version, _ in s.of("acts")] == [4, 7]
        assert [put[2] for put in s.end.puts] == [(4, 7), (7, 7)]


# ---- several groups -------------------------------------------------------------------------


@scene(groups=3)
async def test_a_parked_group_does_not_stop_another(s: Scene) -> None:
    async with s.running():
        s.end.weights(0)
        s.end.grant((1, 2))
        await s.quiet()
        assert s.stepper.taken == [0, 2 * LENGTH, 0]
        s.end.grant((0, 1), (2, 1), (1, 3))
        await s.quiet()
        assert s.stepper.taken == [LENGTH, 3 * LENGTH, LENGTH]
        s.end.grant((0, 4))
        await s.quiet()
        assert s.stepper.taken == [4 * LENGTH, 3 * LENGTH, LENGTH]
        for group in range(3):
            follows(s.end.puts, group)


@scene(groups=3)
async def test_ready_groups_share_one_call_of_the_policy(s: Scene) -> None:
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 1), (1, 1), (2, 2))
        await s.quiet()
        asked = [groups for _, groups, _ in s.of("act")]
        assert asked == [[0, 1, 2]] * LENGTH + [[2]] * LENGTH


@scene(groups=3)
async def test_each_group_gets_its_own_actions_in_whatever_order_they_are_ready(s: Scene) -> None:
    s.stepper.pick = lambda sent: sent[::-1]
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 2), (1, 1), (2, 3))
        await s.quiet()
        # The environments check that an action answers their own row.
        assert s.stepper.taken == [2 * LENGTH, LENGTH, 3 * LENGTH]
        for group in range(3):
            follows(s.end.puts, group)


@scene(groups=2)
async def test_only_groups_that_are_ready_act(s: Scene) -> None:
    """Group 0 is slow: it is ready at every third look."""
    looks = 0

    def pick(sent: list[int]) -> list[int]:
        nonlocal looks
        looks += 1
        return [group for group in sent if group == 1 or looks % 3 == 0]

    s.stepper.pick = pick
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 2), (1, 4))
        await s.quiet()
        asked = [groups for _, groups, _ in s.of("act")]
        assert asked[:4] == [[1], [1], [0, 1], [1]]
        assert s.stepper.taken == [2 * LENGTH, 4 * LENGTH]
        for group in range(2):
            follows(s.end.puts, group)


@scene(groups=2)
async def test_nobody_waits_for_credit_while_a_group_is_on_its_way(s: Scene) -> None:
    """Group 1 is handed back only when group 0 was parked."""
    s.stepper.pick = lambda sent: [0] if 0 in sent else list(sent)
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 1), (1, 2))
        await s.quiet()
        assert s.stepper.taken == [LENGTH, 2 * LENGTH]
        s.end.grant((0, 2))
        await s.quiet()
        for group in range(2):
            follows(s.end.puts, group)


# ---- the end --------------------------------------------------------------------------------


@scene()
async def test_the_run_may_be_over_before_weights_arrive(s: Scene) -> None:
    async with s.running() as task:
        s.end.end()
        await task
    assert s.events == []


@scene()
async def test_the_run_may_be_over_before_it_begins(s: Scene) -> None:
    s.end.end()
    async with asyncio.timeout(120):
        await s.sampler.run()
    assert s.events == []


@scene()
async def test_the_end_wakes_a_parked_sampler(s: Scene) -> None:
    async with s.running() as task:
        s.end.weights(0)
        await s.quiet()
        s.end.end()
        await task
    assert s.of("step") == []


@scene()
async def test_the_end_may_come_while_it_waits_for_environments(s: Scene) -> None:
    """The last group is parked at that moment: no more news will come."""

    def pick(sent: list[int]) -> list[int]:
        if s.stepper.taken == [LENGTH]:
            s.end.end()
        return list(sent)

    s.stepper.pick = pick
    async with s.running() as task:
        s.end.weights(0)
        s.end.grant((0, 1))
        await task
    assert [put[1] for put in s.end.puts] == [0]


@scene()
async def test_the_end_is_seen_between_two_steps(s: Scene) -> None:
    s.stepper.on_step = lambda steps: s.end.end() if steps == 2 else None
    async with s.running() as task:
        s.end.weights(0)
        s.end.grant((0, 9))
        await task
    assert s.stepper.taken == [2]
    assert s.end.puts == []


@scene()
async def test_others_get_their_turn_while_it_works(s: Scene) -> None:
    def stop(steps: int) -> None:
        assert steps < 1_000_000, "the loop never came round"

    s.stepper.on_step = stop
    async with s.running() as task:
        s.end.weights(0)
        s.end.grant((0, 1 << 40))
        await asyncio.sleep(0)
        before = s.stepper.taken[0]
        await asyncio.sleep(0.005)
        assert s.stepper.taken[0] > before
        s.end.end()
        await task


# ---- faults ---------------------------------------------------------------------------------


@scene()
async def test_what_is_not_finite_never_leaves_and_costs_no_credit(s: Scene) -> None:
    """The unroll is played again with the credit that it had."""

    def mend(steps: int) -> None:
        s.stepper.reward = float("nan") if steps <= LENGTH else 1.0

    s.stepper.on_step = mend
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 1))
        await s.quiet()
        assert [put[1] for put in s.end.puts] == [0]
        assert s.puts_rows() == [LENGTH + t for t in range(LENGTH + 1)]
        assert s.stepper.taken == [2 * LENGTH]
        assert s.sampler.crash_budget.count == {"values": 1}


@scene()
async def test_an_environment_that_never_gives_a_number_ends_the_sampler(s: Scene) -> None:
    s.stepper.reward = float("nan")
    s.end.weights(0)
    s.end.grant((0, 1))
    with pytest.raises(EnvError, match=r"Script-v0 failed 4 times .* reward is not finite"):
        async with asyncio.timeout(120):
            await s.sampler.run()
    assert s.end.puts == []


@scene()
async def test_failures_are_counted_and_the_budget_ends_the_sampler(s: Scene) -> None:
    failure = EnvFailure(1, "step", 7, 40, "Traceback\nRuntimeError: the cable is out")
    async with s.running():
        s.end.weights(0)
        await s.quiet()
        s.stepper.failed = [failure] * 3
        s.end.news.set()
        await s.quiet()
        assert s.sampler.crash_budget.count == {"step": 3}
    s = Scene()
    s.end.weights(0)
    s.stepper.failed = [failure] * 4
    with pytest.raises(
        EnvError, match=r"more than actor.crashes_per_hour = 3; .* the cable is out"
    ):
        async with asyncio.timeout(120):
            await s.sampler.run()


# ---- waiting for more -----------------------------------------------------------------------


@scene(groups=2)
async def test_the_network_waits_for_more_environments_when_that_pays(s: Scene) -> None:
    """Group 1 comes one look later; without the wait there would be two calls a step."""
    looks = 0

    def pick(sent: list[int]) -> list[int]:
        nonlocal looks
        looks += 1
        return list(sent) if looks % 2 else [group for group in sent if group == 0]

    s.stepper.pick = pick
    s.batching_wait.wait_s = lambda **_: 5.0  # type: ignore[method-assign]
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 2), (1, 2))
        await s.quiet()
        assert [sorted(groups) for _, groups, _ in s.of("act")] == [[0, 1]] * 2 * LENGTH


@scene(groups=2)
async def test_the_wait_for_more_is_bounded(s: Scene) -> None:
    s.stepper.pick = lambda sent: [group for group in sent if group == 0]  # 1 never comes
    s.batching_wait.wait_s = lambda **_: 0.002  # type: ignore[method-assign]
    async with s.running():
        s.end.weights(0)
        s.end.grant((0, 1), (1, 1))
        async with asyncio.timeout(120):
            while not s.end.puts:  # noqa: ASYNC110  # nothing rings when an unroll is put
                await asyncio.sleep(0.001)
        assert [groups for _, groups, _ in s.of("act")] == [[0]] * LENGTH
        assert s.metrics.waits["gather"] > 0
