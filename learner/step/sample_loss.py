"""The loss of a sample under the network, as the run's settings say."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.learner.algorithms import own_loss
from headrace.learner.algorithms.batch_uses import Sample, with_targets
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossInputs, LossNorm
from headrace.learner.config import AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model, Output
from headrace.learner.models.population.population import FACTORS, Population
from headrace.learner.models.precision import autocast
from headrace.learner.spaces import POLICY
from headrace.learner.train_parts import TrainParts

Network = Callable[..., Any]

# Steps whose convolutions fit into the cache of a processor.
_CACHED = 256


class LossParts(Protocol):
    """Holds what a loss depends on beside the sample."""

    @property
    def algorithm(self) -> AlgorithmConfig: ...

    @property
    def config(self) -> LearnerConfig: ...

    @property
    def model(self) -> Model: ...

    @property
    def device(self) -> torch.device: ...


def inputs_of(
    parts: LossParts,
    network: Network,
    target_network: Network | None,
    sample: Sample,
    norm: LossNorm,
    coefs: Coefficients,
) -> LossInputs:
    """Runs the network, and the target network if there is one."""
    target: Output | None = None
    if isinstance(parts.model, Population):
        norm, coefs = by_policy(parts.model, sample, norm, coefs)
    with autocast(parts.device.type, parts.config.precision, parts.model):
        output: Output = network(sample.obs, sample.memory, sample.begins)
        if target_network is not None:
            target = _without_gradients(parts, target_network, sample)
    return LossInputs(
        config=parts.algorithm,
        coefs=coefs,
        distribution=parts.model.distribution,
        output=output,
        batch=sample.loss,
        target=target,
        norm=norm,
    )


@torch.no_grad()
def _without_gradients(parts: LossParts, network: Network, sample: Sample) -> Output:
    """Runs a network. Convolutions on a processor get a few columns at a time: what they give is
    read again while it is in the processor's cache."""
    rows, columns = sample.obs[parts.model.leaves[0].name].shape[:2]
    few = columns
    if parts.model.convolutional and parts.device.type == "cpu":
        few = max(1, _CACHED // rows)
    cut = [sample.columns(slice(at, at + few)) for at in range(0, columns, few)]
    outputs = [network(part.obs, part.memory, part.begins) for part in cut]
    return Output(*(torch.cat(each, dim=1) for each in zip(*outputs, strict=True)))


def norm_of(parts: TrainParts, steps: float | Tensor) -> LossNorm:
    """Returns the share of this rank in the loss over so many live steps of all ranks."""
    ranks = parts.ranks
    return LossNorm(steps=steps, world=ranks.world, reduce=ranks.total)


def loss_of(
    parts: TrainParts,
    network: Network,
    sample: Sample,
    *,
    norm: LossNorm | None = None,
    coefs: Coefficients | None = None,
) -> Loss:
    """Computes the loss of a sample. `norm`: None = its live steps are counted here. `coefs`: None
    = as the schedules and statistics have them now."""
    if norm is None:
        norm = norm_of(parts, parts.ranks.total(sample.loss.live.sum()).clamp(min=1))
    coefs = coefs or parts.coefficients()
    inputs = inputs_of(parts, network, parts.target, sample, norm, coefs)
    loss = own_loss.function(parts.algorithm)(inputs)
    if inputs.norm.policy is None:
        return loss
    # The sum of the policies' losses, so that each learns as it would alone.
    return loss._replace(total=loss.total * _count(inputs.norm.policy))


def by_policy(
    population: Population, sample: Sample, norm: LossNorm, coefs: Coefficients
) -> tuple[LossNorm, Coefficients]:
    """Returns what each step of a population is weighted by: the mean over its own policy's steps,
    and that policy's factors."""
    live = sample.loss.live
    policy = sample.obs[POLICY][: len(live)]
    counts = torch.bincount(policy.flatten(), live.flatten()).clamp(min=1)
    steps = counts[policy] * _count(policy)
    entropy_coef = coefs.entropy_coef * population.get_buffer(FACTORS["entropy_coef"])[policy]
    clip = coefs.clip * population.get_buffer(FACTORS["clip"])[policy]
    return (
        dataclasses.replace(norm, steps=steps, policy=policy),
        coefs._replace(entropy_coef=entropy_coef, clip=clip),
    )


def _count(policy: Tensor) -> int:
    """Returns how many policies play."""
    return int(torch.bincount(policy.flatten()).count_nonzero())  # sorting them takes longer


def with_targets_of(parts: TrainParts, sample: Sample, norm: LossNorm) -> Sample:
    """Adds ppo's targets, made with the network as it is now; the other losses make their own."""
    if parts.algorithm.name != "ppo":
        return sample

    def network(*_: object) -> Output:
        return _without_gradients(parts, parts.model, sample)

    with torch.no_grad():
        inputs = inputs_of(parts, network, None, sample, norm, parts.coefficients())
        return with_targets(sample, gae_targets(inputs))


def loss_alone(whole: LossNorm, parts: TrainParts, part: Sample) -> Tensor:
    """Returns what some unrolls of a batch add to its loss, without any other rank."""
    norm = LossNorm(steps=whole.steps, world=whole.world)
    return loss_of(parts, parts.model, with_targets_of(parts, part, norm), norm=norm).total
