"""The choice of who decides on a run's optimiser steps: the device, where it can, or the host."""

import logging

from headrace.learner.algorithms.batch_uses import UseOnce, uses_of
from headrace.learner.train_parts import TrainParts

log = logging.getLogger(__name__)


def device_decides(parts: TrainParts) -> bool:
    """Tells whether the device is to: learner.graph asks for it, and nothing stands against it."""
    wanted, cuda = parts.config.graph, parts.device.type == "cuda"
    if not wanted or (wanted == "auto" and not cuda):
        return False
    if reason := _against(parts):
        log.info("learner.graph: %s, so the host launches each part of a step", reason)
    return not reason


def _against(parts: TrainParts) -> str:
    """Says what stands against it; "" = nothing."""
    if parts.ranks.world > 1:
        return "there are several ranks"
    if parts.config.optimiser != "adam":
        return f'learner.optimiser = "{parts.config.optimiser}" cannot skip a step on the device'
    if not isinstance(uses_of(parts.algorithm), UseOnce):
        return "the algorithm uses a batch more than once"
    return ""
