"""The sampler: environments -> policy -> unrolls -> broker, on one event loop.

The policy runs on whichever groups are ready. A group that has filled its part of an unroll is
parked until the other parts are full too and there is credit for the next one; the others go on.
A group whose part has become too old sends it as it is.
"""

import asyncio
import logging
import threading
import time

import numpy as np

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.acting.others import NO_OTHERS, OtherLearners, Others
from headrace.actors.acting.policy import Actions, Floats, Policy
from headrace.actors.acting.previous_step import Arrays, Rows
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.rollout import Rollout, versions_to_play
from headrace.actors.stepping.stepper import Answer, EnvFailure, Stepper, ThreadReply
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.fields import MAX_VERSION
from headrace.learner.config import UnrollConfig

log = logging.getLogger(__name__)

# Work this long between looks at the sockets: long enough to cost nothing, short enough for a beat.
_TURN_S = 0.002


class Sampler:
    """Runs one process's environments and sends their unrolls."""

    def __init__(
        self,
        *,
        end: SamplerEnd,
        stepper: Stepper,
        policy: Policy,
        length: int,
        largest: float = UnrollConfig().largest,
        batching_wait: BatchingWait,
        crash_budget: CrashBudget,
        metrics: SamplerMetrics,
        together: bool = False,
        max_lag: int = MAX_VERSION,
        others: Others | None = None,
        beside: OtherLearners = NO_OTHERS,
    ) -> None:
        self.end = end
        self.stepper = stepper
        self.policy = policy
        self.batching_wait = batching_wait
        self.crash_budget = crash_budget
        self.metrics = metrics
        self.together = together  # at every step all groups wait for each other: it can be repeated
        self.max_lag = max_lag  # versions; a step is trained at most two later
        self.others = others  # they play some of the agents; None = the policy plays all
        self.beside = beside  # policies with samplers of their own
        metrics.watch(end)
        frame, memory, previous = stepper.frame, policy.memory, policy.previous
        self._stacks = FrameStacks(stepper.spaces, frame, memory=memory, previous=previous)
        self._rollouts = [
            Rollout(
                stepper.spaces,
                length=length,
                envs=frame.envs * frame.parts,
                parts=frame.parts,
                memory=memory,
                previous=previous,
                largest=largest,
            )
            for _ in range(frame.groups // frame.parts)
        ]
        self._parts = [part for rollout in self._rollouts for part in rollout.parts]  # by group
        self._parked: list[list[int]] = [[] for _ in self._rollouts]  # groups, by stream
        self._within = np.arange(frame.envs)
        self._network = threading.Lock()  # held while the policy acts or takes new weights
        self._ended = False  # no more steps
        self._oldest = 0  # version; an unroll with a step from before it ends early
        self.waits_for = ""  # while it can do nothing: weights, credit, env, acknowledgements
        self._without_credit: list[int] = []  # streams; all of their groups are parked
        self._ready_groups: list[int] = []  # the network is called for these next

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
        self.metrics.runs(self.stepper)
        try:
            await self._sample()
        finally:
            self._ended = True

    async def _sample(self) -> None:
        turn = time.monotonic()
        while not (self.end.over and self.beside.alone):
            self._take_weights()
            self._count(*self.stepper.failures())
            self._sort_ready(self.stepper.ready())
            if not self._ready_groups or (self.together and self._running()):
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
                if self.others is not None:
                    self.others.took(blob)
            self.stepper.frame.settings[:] = self.policy.settings
            self.metrics.acts_with(self.policy.version)
            self.end.acts_with(self.policy.version, digest)
            self._oldest = self.policy.version - versions_to_play(self.max_lag, self.end.waited)

    def _count(self, *failures: EnvFailure) -> None:
        for failure in failures:
            self.metrics.failed(failure.where)
            self.crash_budget.spend(failure)

    def _sort_ready(self, ready: list[int]) -> None:
        """Sorts the ready groups into those that may act now and those that are parked. What an
        environment answered is written only after the next action is on its way, so that it need
        not wait for that; but a full unroll is sent first."""
        frame, waiting = self.stepper.frame, self._without_credit
        self._without_credit = []
        for group in ready:
            part, columns = self._parts[group], frame.columns(group)
            self._stacks.push(group)
            if part.filling(self._oldest):
                part.stepped(*self._answer(columns))
                part.close({name: rows[columns] for name, rows in frame.obs.items()})
            if not part.full:
                self._ready_groups.append(group)
                continue
            stream = group // frame.parts
            self._parked[stream].append(group)
            if len(self._parked[stream]) * frame.turns == frame.parts:
                if self._rollouts[stream].began:
                    self._send(stream)
                waiting.append(stream)
        for stream in waiting:
            group = self._parked[stream][0]
            if self.beside.skips(group):
                self._play_on(stream)
            elif self._open(stream):
                self._ready_groups += sorted(self._parked[stream])
                self._parked[stream].clear()
            elif self.beside.plays_on(group):
                self._play_on(stream)
            else:
                self._without_credit.append(stream)

    def _send(self, stream: int) -> None:
        rollout = self._rollouts[stream]
        for part in rollout.parts:
            part.suspend()  # an agent that waits for one whose part is full
        rollout.count()
        self.metrics.unusable(rollout.metrics)
        fault = rollout.fault()
        if fault is not None:
            # Nothing of it can be trained on. The unroll is begun again with the credit it had.
            column, words = fault
            column += self.stepper.frame.columns_of(stream).start
            words = f"{words}; mend the environment, or clip in a wrapper"
            self._count(EnvFailure(column, "values", seed=0, steps=0, text=words))
            return
        done = rollout.finish()
        self.end.put(stream, done)
        self.metrics.sent(done.steps, done.ended, sum(map(len, done.buffers)))

    def _open(self, stream: int) -> bool:
        """Begins an unroll, if there is credit for it or one is to be played again."""
        rollout = self._rollouts[stream]
        if not rollout.began:
            if not self.end.outbox.may_start(stream, self.policy.version):
                return False
            self.end.journal.started(self.end.inc, stream, self.end.outbox.start(stream))
        rollout.open(self._stacks.history(stream))
        return True

    def _play_on(self, stream: int) -> None:
        """Makes a step that no unroll holds."""
        group = self._parked[stream].pop()
        columns = self.stepper.frame.columns(group)
        self._rollouts[stream].episodes.break_off()
        with self._network:
            actions, _ = self._choose(columns, self._stacks.view(columns))
        self.stepper.send(group, actions)

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
        seen = self._stacks.snapshot(rows)
        reward, flags, metrics = self._answer(rows)
        with self._network:
            began = time.monotonic()
            actions, logp = self._choose(rows, seen)
            ended = time.monotonic()
            self.metrics.acted(len(actions), ended - began)
            self.batching_wait.called(len(actions), began, ended, self.metrics.waiting_s)
            shares = [slice(at, at + envs) for at in range(0, len(actions), envs)]
            for group, own in zip(groups, shares, strict=True):
                self.stepper.send(group, actions[own])
            for group, own in zip(groups, shares, strict=True):
                part, newest = self._parts[group], self._stacks.newest(seen, own)
                part.stepped(reward[own], flags[own], metrics if metrics is None else metrics[own])
                part.acted(newest, actions[own], logp[own], self.policy.version)

    def _act_in_env_thread(self, group: int) -> Actions | None:
        """Returns a group's next actions to its environment's own thread, which holds the network;
        None = ask the event loop. In the middle of an unroll all that is needed is the network and
        what belongs to this group; the rest, and a network for which rows are better put together,
        is for the event loop."""
        part, columns = self._parts[group], self.stepper.frame.columns(group)
        over = self._ended or self.end.over
        last = part.full or part.filling(self._oldest)
        if over or self.together or not self.policy.quick or last:
            return None
        began = time.monotonic()
        self._stacks.push(group)
        seen, answer = self._stacks.view(columns), self._answer(columns)
        actions, logp = self._choose(columns, seen)
        part.stepped(*answer)
        newest = self._stacks.newest(seen, slice(None))
        part.acted(newest, actions, logp, self.policy.version)
        self.metrics.replied(len(actions), time.monotonic() - began)
        return actions

    def _choose(self, rows: Rows, seen: Arrays) -> tuple[Actions, Floats]:
        """Returns actions and their log-probabilities; keeps what the next step takes from them."""
        before = self._stacks.memory(rows)
        actions, logp, memory = self.policy.act(seen, before)
        if self.others is not None:
            self.others.act(rows, seen, before, actions, memory)
        self._stacks.acted(rows, actions, memory)
        return actions, logp

    def _answer(self, rows: Rows) -> Answer:
        """Returns what the newest step of these environments gave; what others played is dead."""
        answer = self.stepper.frame.answer(rows)
        if self.others is not None:
            self.others.hide(rows, answer)
        return answer

    async def _wait_for_rows(self) -> bool:
        """Waits a little for more environments. True: it waited, so look for ready groups again."""
        waited = await self.batching_wait.for_rows(self.end.news, running=self._running())
        self.metrics.waited("gather", waited)
        return waited > 0

    def _running(self) -> int:
        """Counts the groups whose step is not done; of those that take turns one."""
        frame, parked = self.stepper.frame, sum(map(len, self._parked))
        return frame.groups // frame.turns - len(self._ready_groups) - parked

    def _missing(self) -> str:
        """Returns what a sampler that can do nothing waits for."""
        if len(self._without_credit) < len(self._rollouts):
            return "env"
        lacks = self.end.outbox.waits_for_weights
        waits = any(lacks(stream, self.policy.version) for stream in self._without_credit)
        return "weights" if waits else "credit"

    async def _wait(self, why: str) -> None:
        """Waits for news. News since the last look has set the event again: none is missed."""
        began, self.waits_for = time.monotonic(), why
        may, version = self.end.outbox.may_start, self.policy.version
        credit = any(may(stream, version) for stream in self._without_credit)
        if self.end.blob is None and not credit and not (self.end.over and self.beside.alone):
            await self.end.news.wait()
        self.waits_for = ""
        self.end.news.clear()
        self.metrics.waited(why, time.monotonic() - began)
