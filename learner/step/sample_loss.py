"""The loss of a sample under the network, as the run's settings say."""

import torch
from torch import Tensor, nn

from headrace.learner.algorithms import own_loss
from headrace.learner.algorithms.batch_uses import Sample, with_targets
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossInputs, LossNorm
from headrace.learner.models.model import Output
from headrace.learner.models.precision import autocast
from headrace.learner.train_parts import TrainParts


def inputs_of(
    parts: TrainParts,
    network: nn.Module,
    sample: Sample,
    norm: LossNorm,
    coefs: Coefficients | None = None,
) -> LossInputs:
    """Runs the network, and the target network if there is one. `coefs`: None = as the schedules
    and statistics have them now."""
    target: Output | None = None
    with autocast(parts.device.type, parts.config.precision, parts.model):
        output: Output = network(sample.obs, sample.memory, sample.begins)
        if parts.target is not None:
            with torch.no_grad():
                target = parts.target(sample.obs, sample.memory, sample.begins)
    return LossInputs(
        config=parts.algorithm,
        coefs=coefs or parts.coefficients(),
        distribution=parts.model.distribution,
        output=output,
        batch=sample.loss,
        target=target,
        norm=norm,
    )


def loss_of(
    parts: TrainParts,
    network: nn.Module,
    sample: Sample,
    *,
    norm: LossNorm | None = None,
    coefs: Coefficients | None = None,
) -> Loss:
    """Computes the loss of a sample; `norm`: None = its live steps are counted here."""
    ranks = parts.ranks
    if norm is None:
        steps = ranks.total(sample.loss.live.sum()).clamp(min=1)
        norm = LossNorm(steps=steps, world=ranks.world, reduce=ranks.total)
    return own_loss.function(parts.algorithm)(inputs_of(parts, network, sample, norm, coefs))


def with_targets_of(parts: TrainParts, sample: Sample, norm: LossNorm) -> Sample:
    """Adds ppo's targets, made with the network as it is now; the other losses make their own."""
    if parts.algorithm.name != "ppo":
        return sample
    with torch.no_grad():
        return with_targets(sample, gae_targets(inputs_of(parts, parts.model, sample, norm)))


def loss_alone(parts: TrainParts, part: Sample, *, whole: LossNorm) -> Tensor:
    """Returns what some unrolls of a batch add to its loss, without any other rank."""
    norm = LossNorm(steps=whole.steps, world=whole.world)
    return loss_of(parts, parts.model, with_targets_of(parts, part, norm), norm=norm).total
