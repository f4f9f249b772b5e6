"""The choices of a run's optimiser steps: who decides on them, the device or the host, and whether
the host's may be compiled, or be one graph."""

import logging

from headrace.learner.algorithms.batch_uses import UseOnce, uses_of
from headrace.learner.models.cores import Recurrent
from headrace.learner.models.population.population import Population
from headrace.learner.train_parts import TrainParts

log = logging.getLogger(__name__)

_MANY = "a population takes the rows of those that play"


def device_decides(parts: TrainParts) -> bool:
    """Tells whether the device is to: learner.graph asks for it, and nothing stands against it."""
    wanted, cuda = parts.config.graph, parts.device.type == "cuda"
    if not wanted or (wanted == "auto" and not cuda):
        return False
    if reason := _against(parts):
        log.info("learner.graph: %s, so the host looks at each gradient", reason)
    return not reason


def _against(parts: TrainParts) -> str:
    """Says what stands against it; "" = nothing."""
    if parts.spread:
        return "the ranks gather each layer (learner.shard)"
    how = parts.algorithm.normalise_advantages
    if parts.ranks.world > 1 and (how is True or (how and parts.model.distribution.density)):
        return "the ranks share the mean of their advantages (algorithm.normalise_advantages)"
    if isinstance(parts.model, Population):
        return _MANY
    if parts.config.optimiser != "adam":
        return f'learner.optimiser = "{parts.config.optimiser}" cannot skip a step on the device'
    if not isinstance(uses_of(parts.algorithm), UseOnce):
        return "the algorithm uses a batch more than once"
    return ""


def may_compile(parts: TrainParts) -> bool:
    """Tells whether the host's steps may be compiled: learner.compile allows it, and nothing stands
    against it."""
    wanted = parts.config.compile
    if wanted == "auto" and _own_code(parts):
        return False
    reason = _against_compiling(parts) if wanted else ""
    if reason and wanted is True:
        log.info("learner.compile: %s, so the parts of a step are launched one by one", reason)
    return bool(wanted) and not reason


def may_capture(parts: TrainParts) -> bool:
    """Tells whether each of the host's steps may be one graph: on a GPU, unless learner.graph or
    something else stands against it."""
    if parts.device.type != "cuda" or not parts.config.graph:
        return False
    if reason := _against_one(parts):
        log.info("learner.graph: %s, so the parts of a step are launched one by one", reason)
    return not reason


def _against_compiling(parts: TrainParts) -> str:
    if parts.device.type != "cpu":
        return "the learner is not on a CPU"
    cores = parts.model.core, parts.model.value_core
    if any(isinstance(core, Recurrent) for core in cores):
        return "a recurrent network takes its steps one after another"
    return _against_one(parts)


def _against_one(parts: TrainParts) -> str:
    """Says what stands against a step in one piece."""
    if parts.ranks.world > 1:
        return "there are several ranks"
    if isinstance(parts.model, Population):
        return _MANY
    if parts.config.optimiser != "adam":
        return f'learner.optimiser = "{parts.config.optimiser}" is not adam'
    return ""


def _own_code(parts: TrainParts) -> bool:
    """Tells whether the user's own code is in a step: what it does beside tensors would be done
    once, as it is recorded."""
    encoders = (parts.model.encoder, parts.model.value_encoder)
    ours = all(type(each).__module__.startswith("headrace.") for each in encoders if each)
    return bool(parts.algorithm.loss) or not ours
