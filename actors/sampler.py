"""The sampler: environments -> policy -> unrolls -> broker, on one event loop.

The policy runs on whichever groups are ready. A group that has filled its unroll begins the next
one when there is credit, and is parked until then; nobody waits for it.
"""

import asyncio
import logging
import time

import numpy as np

from actors.envs import EnvError
from actors.metrics import ActorMetrics
from actors.policy import Policy
from actors.rollout import Rollout
from actors.stepping.stepper import Stepper
from broker.actor_end import ActorEnd

log = logging.getLogger(__name__)

# Work this long between looks at the sockets: long enough to cost nothing, short enough for a beat.
_TURN_S = 0.002


class Sampler:
    """One process's environments."""

    def __init__(
        self,
        *,
        end: ActorEnd,
        stepper: Stepper,
        policy: Policy,
        length: int,
        metrics: ActorMetrics,
    ) -> None:
        self.end = end
        self.stepper = stepper
        self.policy = policy
        self.metrics = metrics
        frame = stepper.frame
        self._rollouts = [
            Rollout(stepper.spaces, length=length, envs=frame.envs) for _ in range(frame.groups)
        ]
        self._parked: list[int] = []  # groups with an observation but no credit to go on

    async def run(self) -> None:
        """Until the run is over, or cancelled. Consumes credit and weights, produces unrolls; waits
        for news only when every group is parked."""
        while self.policy.version < 0 and not self.end.over:
            await self._wait("weights")
            self._take_weights()
        if self.end.over:
            return
        self.stepper.reset()
        turn = time.monotonic()
        while not self.end.over:
            self._take_weights()
            ready = self._open(self._close(await self.stepper.ready()))
            if ready:
                self._act(ready)
            elif len(self._parked) == self.stepper.frame.groups:
                await self._wait("credit")
                turn = time.monotonic()
            if time.monotonic() - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def drain(self, timeout_s: float) -> None:
        """No more steps; wait until everything sent is acknowledged, or there is no point."""
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
            digest = self.policy.load(blob)
            self.metrics.weights_version.set(self.policy.version)
            self.end.acts_with(self.policy.version, digest)

    def _close(self, ready: list[int]) -> list[int]:
        """Write what the environments answered; send what is full."""
        frame = self.stepper.frame
        for group in ready:
            rollout, columns = self._rollouts[group], frame.columns(group)
            rollout.stepped(frame.rows[columns], frame.reward[columns], frame.flags[columns])
            if rollout.full and rollout.began:
                self._send(group, rollout)
        return ready

    def _send(self, group: int, rollout: Rollout) -> None:
        fault = rollout.faults()
        if fault:
            raise EnvError(f"the environment returned {fault}; mend it, or clip it in a wrapper")
        done = rollout.finish()
        self.end.put(
            group, versions=done.versions, steps=done.steps, digest=done.digest, ended=done.ended,
            episodes=done.episodes, buffers=done.buffers,
        )  # fmt: skip
        self.metrics.sent(done.steps, done.ended, sum(len(b) for b in done.buffers), self.end)

    def _open(self, ready: list[int]) -> list[int]:
        """Groups that may act: in the middle of an unroll, or with credit for a new one."""
        ready = ready + self._parked
        self._parked = []
        going = []
        for group in ready:
            if not self._rollouts[group].full:
                going.append(group)
            elif self.end.outbox.may_start(group, self.policy.version):
                self.end.outbox.start(group)
                self._rollouts[group].open()
                going.append(group)
            else:
                self._parked.append(group)
        return going

    def _may_go_on(self) -> bool:
        """May a parked group go on?"""
        may = self.end.outbox.may_start
        return any(may(group, self.policy.version) for group in self._parked)

    def _act(self, groups: list[int]) -> None:
        """One call of the network for all of them."""
        frame = self.stepper.frame
        rows = frame.rows
        if len(groups) == frame.groups:
            groups = list(range(frame.groups))  # as they lie: nothing to copy
        else:
            rows = np.concatenate([rows[frame.columns(group)] for group in groups])
        actions, logp = self.policy.act(rows)
        at = 0
        for group in groups:
            part = slice(at, at + frame.envs)
            at += frame.envs
            self._rollouts[group].acted(rows[part], actions[part], logp[part], self.policy.version)
            self.stepper.send(group, actions[part])

    async def _wait(self, why: str) -> None:
        if why == "credit" and any(
            self.end.outbox.waits_for_weights(g, self.policy.version) for g in self._parked
        ):
            why = "weights"
        began = time.monotonic()
        self.end.news.clear()
        if self.end.blob is None and not self._may_go_on() and not self.end.over:
            await self.end.news.wait()
        self.metrics.waited(why, time.monotonic() - began)
