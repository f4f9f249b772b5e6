"""The log-prob gap: recorded log-probabilities against the learner's own, for the same weights.

It is zero when samplers act with the weights that were published. A sampler that acts with stale,
torn or foreign weights shows here, even if every digest on the way was right.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from headrace.learner.batches.frames import begins, observed
from headrace.learner.models.model import Model
from headrace.learner.spaces import DEAD, Spaces
from headrace.learner.weights import Body, FlatWeights


class LogProbGap:
    """Keeps the newest published weights and recomputes one unroll now and then."""

    def __init__(
        self, scratch: Model, spaces: Spaces, *, keep: int, envs: int, previous: bool = False
    ) -> None:
        self._spaces = spaces
        self._previous = previous  # the network sees the step before
        self._scratch = scratch  # a second module of the same layout, on the CPU
        self._weights = FlatWeights(scratch)
        self._keep = keep  # published versions remembered: older unrolls cannot be checked
        self._envs = envs
        self._published: OrderedDict[int, Body] = OrderedDict()

    def published(self, version: int, body: Body) -> None:
        self._published[version] = body
        while len(self._published) > self._keep:
            self._published.popitem(last=False)

    def measure(self, tensors: dict[str, Tensor], versions: list[tuple[int, int]]) -> float | None:
        """Returns the largest |difference| over an unroll of one version that we have; None = no
        such."""
        for at, (low, high) in enumerate(versions):
            if low == high and low in self._published:
                return self._of(tensors, slice(at * self._envs, (at + 1) * self._envs), low)
        return None

    @torch.no_grad()
    def _of(self, tensors: dict[str, Tensor], columns: slice, version: int) -> float:
        self._weights.load(self._published[version], check_finite=False)
        part = {name: tensor[:, columns].cpu() for name, tensor in tensors.items()}
        obs = observed(part, self._spaces, previous=self._previous)
        if self._scratch.memory:
            output = self._scratch(obs, part["memory"][0], begins(part["flags"]))
            params = output.params[:-1]
        else:
            params = self._scratch({name: rows[:-1] for name, rows in obs.items()}).params
        recomputed = self._scratch.distribution.log_prob(params, part["action"])
        live = (part["flags"] & DEAD) == 0
        gap = (recomputed - part["logp"]).abs()
        return float(gap[live].max()) if bool(live.any()) else 0.0
