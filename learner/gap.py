"""The log-prob gap: what a sampler recorded against what the learner computes for the same weights.

It is zero when the weights that act are the weights that were published. A sampler that acts with
stale, torn or foreign weights shows here, though every digest on the way was right.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from learner.frames import observed
from learner.models import categorical
from learner.models.model import Model
from learner.spaces import DEAD, Spaces
from learner.weights import FlatWeights


class GapCheck:
    """Keeps the newest published weights and recomputes one unroll now and then."""

    def __init__(self, scratch: Model, spaces: Spaces, *, keep: int, envs: int) -> None:
        self._spaces = spaces
        self._scratch = scratch  # a second module of the same layout, on the CPU
        self._weights = FlatWeights(scratch)
        self._keep = keep  # published versions remembered: older unrolls cannot be checked
        self._envs = envs
        self._published: OrderedDict[int, bytes] = OrderedDict()

    def published(self, version: int, body: bytes) -> None:
        self._published[version] = body
        while len(self._published) > self._keep:
            self._published.popitem(last=False)

    def measure(self, tensors: dict[str, Tensor], versions: list[tuple[int, int]]) -> float | None:
        """The largest |difference| over an unroll that was acted with one version we still have."""
        for at, (low, high) in enumerate(versions):
            if low == high and low in self._published:
                return self._of(tensors, slice(at * self._envs, (at + 1) * self._envs), low)
        return None

    @torch.no_grad()
    def _of(self, tensors: dict[str, Tensor], columns: slice, version: int) -> float:
        self._weights.load(self._published[version], check_finite=False)
        part = {
            name: tensor[:, columns].cpu()
            for name, tensor in tensors.items()
            if name.startswith("obs.") or name == "flags"
        }
        obs = {name: rows[:-1] for name, rows in observed(part, self._spaces).items()}
        logits = self._scratch.policy(obs)
        recomputed = categorical.log_prob(logits, tensors["action"][:, columns].cpu())
        live = (tensors["flags"][:, columns].cpu() & DEAD) == 0
        gap = (recomputed - tensors["logp"][:, columns].cpu()).abs()
        return float(gap[live].max()) if bool(live.any()) else 0.0
