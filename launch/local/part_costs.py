"""Adds up what a step costs each part of a run while it trains: seconds of a core. Pure."""

from collections.abc import Mapping
from typing import Any

from headrace.launch.process.memory_use import Use

_WARM_S = 2.0  # from the first unroll that was trained: the first batches are slower
_LEAST_S = 1e-9  # of a part that used no tick of the clock

BROKER, LEARNER, SAMPLER, OTHER = "broker", "learner", "sampler", "other"


class PartCosts:
    """Holds what the parts used since the run was warm."""

    def __init__(self) -> None:
        self._warm_at: float | None = None  # None = nothing was trained yet
        self._began: tuple[float, float] | None = None  # when the run was warm; unrolls until then
        self._wall_s, self._unrolls = 0.0, 0.0  # since
        self._spent: dict[str, float] = {}  # seconds since, by part
        self._seen: Mapping[int, Use] = {}  # by process, at the last look
        self._sampler_mb: list[float] = []  # of each, at the last look

    def look(
        self, uses: Mapping[int, Use], parts: Mapping[int, str], unrolls: float, now: float
    ) -> None:
        """Notes what each process has used by now, and how many unrolls were trained."""
        if self._warm_at is None and unrolls:
            self._warm_at = now + _WARM_S
        if self._began is not None and unrolls < self._began[1] + self._unrolls:
            self._began = None  # another broker counts: begins anew
            self._spent.clear()
        if self._warm_at is None or now < self._warm_at:
            return
        if self._began is None:
            self._began = now, unrolls
        else:
            for pid in uses.keys() & self._seen.keys():
                spent = uses[pid].cpu_s - self._seen[pid].cpu_s
                part = parts.get(pid, OTHER)
                self._spent[part] = self._spent.get(part, 0.0) + max(0.0, spent)
        self._wall_s, self._unrolls = now - self._began[0], unrolls - self._began[1]
        self._seen = uses
        self._sampler_mb = [one.pss_mb for pid, one in uses.items() if parts.get(pid) == SAMPLER]

    def of_step(self, unroll_steps: float, *, cores: int) -> dict[str, Any] | None:
        """Returns seconds of a core for each step; None = too little was trained to tell.
        `unroll_steps`: how many an unroll has."""
        steps = self._unrolls * unroll_steps
        if not steps or not {BROKER, LEARNER, SAMPLER} <= self._spent.keys():
            return None
        each = {part: max(_LEAST_S, spent / steps) for part, spent in self._spent.items()}
        # Of those that the run can fill: no more than it has samplers and learners.
        cores = min(cores, len(self._sampler_mb) + 1)
        busy = sum(self._spent.values()) / (self._wall_s * cores)
        return {
            "sampler_s": each[SAMPLER],
            "learner_s": each[LEARNER],
            "broker_s": each[BROKER],
            "busy": min(1.0, max(0.05, busy)),
            "sampler_mib": sum(self._sampler_mb) / max(1, len(self._sampler_mb)),
        }
