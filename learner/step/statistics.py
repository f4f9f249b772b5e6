"""The running statistics that a batch moves: of observations, and of returns."""

import torch
from torch import Tensor

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.models.normalise import moments
from headrace.learner.train_parts import TrainParts


@torch.no_grad()
def update_statistics(
    parts: TrainParts, fresh: Sample, vs: Tensor | None, live: Tensor | None = None
) -> None:
    """Updates them once for each batch, only from what is new in it, however often it was used.
    `live`: of its steps those that count; None = all that are."""
    normaliser, returns = parts.model.normaliser, parts.model.returns
    live = fresh.loss.live if live is None else live
    if normaliser is not None:
        normaliser.update(fresh.obs, live, parts.ranks.total)
    if returns is not None and vs is not None:
        new = vs[:, : live.shape[1]].unsqueeze(-1)
        returns.merge(moments(new, live, parts.ranks.total))
