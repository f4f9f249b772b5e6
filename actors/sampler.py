"""The sampler: environments -> policy -> unrolls -> broker, on one event loop.

The policy runs on whichever groups are ready. A group that has filled its unroll begins the next
one when there is credit, and is parked until then; the others go on.
"""

import asyncio
import logging
import threading
import time

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.acting.policy import Actions, Floats, Policy
from headrace.actors.acting.previous_step import Arrays, Rows
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.metrics import ActorMetrics
from headrace.actors.rollout import Rollout
from headrace.actors.stepping.stepper import EnvFailure, Stepper, ThreadReply
from headrace.broker.peers.sampler import ActorEnd
from headrace.learner.config import UnrollConfig

log = logging.getLogger(__name__)

# Work this long between looks at the sockets: long enough to cost nothing, short enough for a beat.
_TURN_S = 0.002


class Sampler:
    """Runs one process's environments and sends their unrolls."""

    def __init__(
        self,
        *,
        end: ActorEnd,
        stepper: Stepper,
        policy: Policy,
        length: int,
        largest: float = UnrollConfig().largest,
        batching_wait: BatchingWait,
        crash_budget: CrashBudget,
        metrics: ActorMetrics,
    ) -> None:
        self.end = end
        self.stepper = stepper
        self.policy = policy
        self.batching_wait = batching_wait
        self.crash_budget = crash_budget
        self.metrics = metrics
        metrics.watch(end)
        frame, memory, previous = stepper.frame, policy.memory, policy.previous
        self._stacks = FrameStacks(stepper.spaces, frame, memory=memory, previous=previous)
        self._rollouts = [
            Rollout(
                stepper.spaces,
                length=length,
                envs=frame.envs,
                memory=memory,
                previous=previous,
                largest=largest,
            )
            for _ in range(frame.groups)
        ]
        self._within = np.arange(frame.envs)
        self._network = threading.Lock()  # held while the policy acts or takes new weights
        self._ended = False  # no more steps
        self.waits_for = ""  # while it can do nothing: weights, credit, env, acknowledgements
        self._groups_without_credit: list[int] = []  # they have an observation, and are parked
        self._ready_groups: list[int] = []  # the network is called for these next
        self._waits_until = 0.0  # the end of its wait for more rows; 0 = it does not wait
        # When the network was called last, and how long all waits were until then.
        self._last_call = (0.0, 0.0)

    async def run(self) -> None:
        """Samples until the run is over, or cancelled. Consumes credit and weights, produces
        unrolls; waits for news only when nothing can be done: environments and the broker set the
        same event."""
        while self.policy.version < 0 and not self.end.over:
            await self._wait("weights")
            self._take_weights()
        if self.end.over:
            return
        self.stepper.start(self.end.news, ThreadReply(self._network, self._act_in_env_thread))
        self.metrics.runs(self.stepper.frame)
        try:
            await self._sample()
        finally:
            self._ended = True

    async def _sample(self) -> None:
        turn = time.monotonic()
        while not self.end.over:
            self._take_weights()
            for failure in self.stepper.failures():
                self._count_failure(failure)
            self._sort_ready(self.stepper.ready())
            if not self._ready_groups:
                await self._wait(self._missing())
                turn = time.monotonic()
            elif not await self._wait_for_rows():
                self._act_on_ready()
            if time.monotonic() - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def drain(self, timeout_s: float) -> None:
        """Waits, without further steps, until everything sent is acknowledged, the run is over, or
        the time is up."""
        self.waits_for = "acknowledgements"
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.end.outbox) and not self.end.over:
                    self.end.news.clear()
                    await self.end.news.wait()
        except TimeoutError:
            log.info("%d unrolls are still not acknowledged", len(self.end.outbox))

    def _take_weights(self) -> None:
        blob = self.end.take_blob()
        if blob is not None:
            with self._network:
                digest = self.policy.load(blob)
            self.metrics.acts_with(self.policy.version)
            self.end.acts_with(self.policy.version, digest)

    def _count_failure(self, failure: EnvFailure) -> None:
        self.metrics.failed(failure.where)
        self.crash_budget.spend(failure)

    def _sort_ready(self, ready: list[int]) -> None:
        """Sorts the ready groups into those that may act now and those without credit. What an
        environment answered is written only after the next action is on its way, so that it need
        not wait for that; but a full unroll is sent first."""
        frame, waiting = self.stepper.frame, self._groups_without_credit
        self._groups_without_credit = []
        for group in ready:
            rollout, columns = self._rollouts[group], frame.columns(group)
            self._stacks.push(group)
            if rollout.filling:
                rollout.stepped(frame.reward[columns], frame.flags[columns])
                rollout.close({name: rows[columns] for name, rows in frame.obs.items()})
                self._send(group, rollout)
            if rollout.full:
                waiting.append(group)
            else:
                self._ready_groups.append(group)
        for group in waiting:
            (self._ready_groups if self._open(group) else self._groups_without_credit).append(group)

    def _send(self, group: int, rollout: Rollout) -> None:
        fault = rollout.fault()
        if fault is not None:
            # Nothing of it can be trained on. The unroll is begun again with the credit it had.
            column, words = fault
            column += self.stepper.frame.columns(group).start
            words = f"{words}; mend the environment, or clip in a wrapper"
            self._count_failure(EnvFailure(column, "values", seed=0, steps=0, text=words))
            return
        done = rollout.finish()
        self.end.put(
            group,
            versions=done.versions,
            steps=done.steps,
            digest=done.digest,
            ended=done.ended,
            episodes=done.episodes,
            buffers=done.buffers,
        )
        self.metrics.sent(done.steps, done.ended, sum(map(len, done.buffers)))

    def _open(self, group: int) -> bool:
        """Begins an unroll, if there is credit for it or one is to be played again."""
        rollout = self._rollouts[group]
        if not rollout.began:
            if not self.end.outbox.may_start(group, self.policy.version):
                return False
            self.end.outbox.start(group)
        rollout.open(self._stacks.history(group))
        return True

    def _has_credit(self) -> bool:
        """Says whether a group without credit may go on now."""
        may = self.end.outbox.may_start
        return any(may(group, self.policy.version) for group in self._groups_without_credit)

    def _act_on_ready(self) -> None:
        """Calls the network once for all groups that go on; sends actions before it writes the
        step."""
        groups, self._ready_groups = self._ready_groups, []
        frame, envs = self.stepper.frame, self.stepper.frame.envs
        rows: Rows = slice(None)  # as they lie
        if len(groups) == frame.groups:
            groups = list(range(frame.groups))
        else:
            rows = (np.array(groups)[:, None] * envs + self._within).ravel()
        seen, reward, flags = self._stacks.snapshot(rows), frame.reward[rows], frame.flags[rows]
        if isinstance(rows, slice):
            reward, flags = reward.copy(), flags.copy()
        with self._network:
            began = time.monotonic()
            actions, logp = self._choose(rows, seen)
            self._record_call(len(actions), began, time.monotonic())
            parts = [slice(at, at + envs) for at in range(0, len(actions), envs)]
            for group, part in zip(groups, parts, strict=True):
                self.stepper.send(group, actions[part])
            for group, part in zip(groups, parts, strict=True):
                newest = self._stacks.newest(seen, part)
                self._write(group, newest, reward[part], flags[part], actions[part], logp[part])

    def _act_in_env_thread(self, group: int) -> Actions | None:
        """Returns a group's next actions to its environment's own thread, which holds the network;
        None = ask the event loop. In the middle of an unroll all that is needed is the network and
        what belongs to this group; the rest, and a network for which rows are better put together,
        is for the event loop."""
        rollout, columns = self._rollouts[group], self.stepper.frame.columns(group)
        over = self._ended or self.end.over
        if over or not self.policy.quick or rollout.filling or rollout.full:
            return None
        frame, began = self.stepper.frame, time.monotonic()
        self._stacks.push(group)
        seen = self._stacks.view(columns)
        actions, logp = self._choose(columns, seen)
        newest = self._stacks.newest(seen, slice(None))
        self._write(group, newest, frame.reward[columns], frame.flags[columns], actions, logp)
        self.metrics.replied(len(actions), time.monotonic() - began)
        return actions

    def _choose(self, rows: Rows, seen: Arrays) -> tuple[Actions, Floats]:
        """Returns actions and their log-probabilities; keeps what the next step takes from them."""
        actions, logp, memory = self.policy.act(seen, self._stacks.memory(rows))
        self._stacks.acted(rows, actions, memory)
        return actions, logp

    def _write(
        self,
        group: int,
        newest: Arrays,
        reward: Floats,
        flags: NDArray[np.uint8],
        actions: Actions,
        logp: Floats,
    ) -> None:
        """Writes the environments' answer to the action before, then what was chosen now."""
        rollout = self._rollouts[group]
        rollout.stepped(reward, flags)
        rollout.acted(newest, actions, logp, self.policy.version)

    def _record_call(self, rows: int, began: float, ended: float) -> None:
        """Records the cost of a call: it decides whether the next call waits for more rows."""
        before, waited = self._last_call
        self._last_call = (ended, self.metrics.waiting_s)
        self.metrics.acted(rows, ended - began)
        self.batching_wait.record_call(
            rows=rows,
            seconds=ended - began,
            waited=self.metrics.waiting_s - waited,
            elapsed=ended - before,
        )

    async def _wait_for_rows(self) -> bool:
        """Waits a little for more environments. True: it waited, so look for ready groups again."""
        still = len(self._ready_groups) + len(self._groups_without_credit)
        running, now = self.stepper.frame.groups - still, time.monotonic()
        if not self._waits_until:
            wait = self.batching_wait.wait_s(running=running)
            if not wait:
                return False
            self._waits_until = now + wait
        left = self._waits_until - now
        if left <= 0 or not running:
            self._waits_until = 0.0
            return False
        news = self.end.news
        news.clear()
        timer = asyncio.get_running_loop().call_later(left, news.set)
        await news.wait()
        timer.cancel()
        self.metrics.waited("gather", time.monotonic() - now)
        return True

    def _missing(self) -> str:
        """Returns what a sampler that can do nothing waits for."""
        if len(self._groups_without_credit) < self.stepper.frame.groups:
            return "env"
        lacks = self.end.outbox.waits_for_weights
        waits = any(lacks(group, self.policy.version) for group in self._groups_without_credit)
        return "weights" if waits else "credit"

    async def _wait(self, why: str) -> None:
        """Waits for news. News since the last look has set the event again: none is missed."""
        began, self.waits_for = time.monotonic(), why
        if self.end.blob is None and not self._has_credit() and not self.end.over:
            await self.end.news.wait()
        self.waits_for = ""
        self.end.news.clear()
        self.metrics.waited(why, time.monotonic() - began)
