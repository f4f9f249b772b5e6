"""Builds the network of the [model] section, for learners, samplers and evaluators alike."""

import math
from collections.abc import Callable

import torch
from torch import nn

from headrace.learner.config import ModelConfig
from headrace.learner.models.cores import CORES, Core
from headrace.learner.models.distribution import Distribution, distribution_of
from headrace.learner.models.encoders.custom import custom_encoder
from headrace.learner.models.encoders.mlp import Mlp
from headrace.learner.models.encoders.nature import Nature
from headrace.learner.models.encoders.resnet import ResNet
from headrace.learner.models.layers import POLICY_GAIN, VALUE_GAIN, linear
from headrace.learner.models.model import Heads, Model, Output, Trunk
from headrace.learner.models.normalise import Normaliser
from headrace.learner.spaces import Action, Leaf, Spaces, previous_leaves

__all__ = ["Model", "Output", "build"]

_KINDS: dict[str, Callable[..., nn.Module]] = {"mlp": Mlp, "nature": Nature, "resnet": ResNet}


def build(config: ModelConfig, spaces: Spaces, *, seed: int) -> Model:
    """Builds the network on the CPU; its weights depend on `seed` alone.

    The global random state is left as it was: building a network must not change what the caller
    draws next.
    """
    custom = ":" in config.kind
    if not custom and config.kind not in _KINDS:
        raise ValueError(
            f'model.kind = "{config.kind}" is not available; set it to one of:'
            f" {', '.join(_KINDS)}, or to module:factory of your own"
        )
    if not custom and config.kwargs:
        raise ValueError(
            f'model.kwargs are for a module:factory, model.kind = "{config.kind}" takes none;'
            " leave them out"
        )
    rng = torch.Generator().manual_seed(seed)
    # torch fills a new layer from the global generator before we overwrite it with our own draw; a
    # user's encoder may keep that.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _model(config, spaces, rng)


def _model(config: ModelConfig, spaces: Spaces, rng: torch.Generator) -> Model:
    observed = tuple(leaf for leaf in spaces.observation if not leaf.mask)
    if not observed:
        raise ValueError(
            "the observation is nothing but env.mask; give the network something to see"
        )
    previous = _previous(spaces) if config.previous else ()
    leaves = (*observed, *previous)
    normaliser = _normaliser(observed) if config.normalise_obs else None

    def encoder() -> nn.Module:
        if ":" in config.kind:
            return custom_encoder(config, leaves, rng, normaliser)
        return _KINDS[config.kind](leaves, config, rng, unscaled=len(previous))

    encoders = [encoder() for _ in range(2 if config.separate else 1)]
    if encoders[0] is encoders[-1] and config.separate:
        raise ValueError(
            f'model.kind = "{config.kind}" made the same module twice; make a new one in every'
            " call, or set model.separate = false"
        )
    trunks = [Trunk(one, _core(config, _units(one), rng)) for one in encoders]
    distribution = distribution_of(spaces.action)
    core = trunks[0].core
    units = _units(encoders[0]) if core is None else core.units
    return Model(
        leaves,
        distribution,
        policy=trunks[0],
        value=trunks[1] if config.separate else None,
        heads=_heads(config, spaces.action, distribution, units, rng),
        mask=next((leaf.name for leaf in spaces.observation if leaf.mask), ""),
        normaliser=normaliser,
        normalise_returns=config.normalise_returns,
    )


def _previous(spaces: Spaces) -> tuple[Leaf, ...]:
    leaves = previous_leaves(spaces)
    taken = {leaf.name for leaf in spaces.observation} & {leaf.name for leaf in leaves}
    if taken:
        raise ValueError(
            f"model.previous adds {', '.join(sorted(taken))} to the observation, which has it"
            " already; set model.previous = false, or rename the observation's with a wrapper"
        )
    return leaves


def _normaliser(observed: tuple[Leaf, ...]) -> Normaliser:
    normaliser = Normaliser(observed)
    if not normaliser.leaves:
        raise ValueError(
            "model.normalise_obs = true, but the observation has no numbers, only images or"
            " categories; set it to false"
        )
    return normaliser


def _units(encoder: nn.Module) -> int:
    units = encoder.units
    assert isinstance(units, int)
    return units


def _core(config: ModelConfig, inputs: int, rng: torch.Generator) -> Core | None:
    return None if config.core == "none" else CORES[config.core](inputs, config.core_units, rng)


def _heads(
    config: ModelConfig,
    action: Action,
    distribution: Distribution,
    units: int,
    rng: torch.Generator,
) -> Heads:
    numbers = action.numbers
    free = config.std == "free" and numbers > 0
    outputs = distribution.params - (numbers if free else 0)
    policy = linear(units, outputs, POLICY_GAIN, rng)
    value = linear(units, 1, VALUE_GAIN, rng)
    start = math.log(config.std_init)
    if free:
        return Heads(policy, value, torch.full((numbers,), start))
    if numbers:
        with torch.no_grad():
            policy.bias[-numbers:] = start
    return Heads(policy, value, None)
