"""Builds the network of the [model] section, for learners, samplers and evaluators alike."""

import math
from collections.abc import Callable
from typing import Final

import msgspec
import torch
from torch import nn

from headrace.learner.config import NORMALISED_KINDS, ModelConfig
from headrace.learner.models.attention import Transformer
from headrace.learner.models.cores import CORES, Core
from headrace.learner.models.distribution import Distribution, distribution_of
from headrace.learner.models.encoders.custom import custom_encoder
from headrace.learner.models.encoders.grid import Grid
from headrace.learner.models.encoders.images import geometry, image_leaves
from headrace.learner.models.encoders.mlp import Mlp
from headrace.learner.models.encoders.nature import Nature
from headrace.learner.models.encoders.resnet import ResNet
from headrace.learner.models.layers import POLICY_GAIN, VALUE_GAIN, linear
from headrace.learner.models.model import Heads, Model, Output, Trunk
from headrace.learner.models.normalise import ImageNormaliser, Normaliser
from headrace.learner.models.population.population import Population
from headrace.learner.spaces import POLICY, Action, Leaf, Spaces, previous_leaves

__all__ = ["Model", "Output", "build", "chosen_kind"]

AUTO = "auto"
WIRES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # model.wire
SETTINGS = "env_settings"  # a buffer: the numbers of env.settings that a version is played with
_KINDS: dict[str, Callable[..., nn.Module]] = {
    "mlp": Mlp,
    "nature": Nature,
    "resnet": ResNet,
    "grid": Grid,
}
_CONVOLUTIONS = ("nature", "resnet", "grid")
# The fewest pixels of a side that the convolutions of nature can take.
_NATURE_FROM = 36


def chosen_kind(config: ModelConfig, spaces: Spaces) -> str:
    """Returns model.kind; for auto the one that fits what the policy sees: convolutions where there
    are images, by their smaller sides, and else mlp."""
    if config.kind != AUTO:
        return config.kind
    images = [
        leaf for leaf in acted_on(spaces) if leaf.image and not (leaf.mask or leaf.categories)
    ]
    if not images or any(len(leaf.shape) > 3 for leaf in images):
        return "mlp"
    sides = [min(geometry(leaf)[1:]) for leaf in images]
    if min(sides) >= _NATURE_FROM:
        return "nature"
    # Beside a large image the cells of a grid would be too many.
    return "grid" if max(sides) < _NATURE_FROM else "resnet"


def acted_on(spaces: Spaces) -> tuple[Leaf, ...]:
    """Returns the leaves that the policy needs, the mask among them: all but the critic's."""
    return tuple(leaf for leaf in spaces.observation if leaf.name not in spaces.critic)


def build(config: ModelConfig, spaces: Spaces, *, seed: int) -> Model:
    """Builds the network on the CPU; its weights depend on `seed` alone.

    The global random state is left as it was: building a network must not change what the caller
    draws next.
    """
    if spaces.population:
        return _population(config, spaces, seed)
    seen = msgspec.structs.replace(spaces, observation=acted_on(spaces))
    config = msgspec.structs.replace(config, kind=chosen_kind(config, seen))
    if config.separate == AUTO:
        apart = config.kind not in _CONVOLUTIONS or config.core != "none" or bool(spaces.critic)
        config = msgspec.structs.replace(config, separate=apart)
    if spaces.critic and (not config.separate or config.obs_scale):
        raise ValueError(
            "env.critic needs a value network of its own and observations without obs_scale: set"
            " model.separate = true and model.obs_scale = [], or leave env.critic out"
        )
    custom = ":" in config.kind
    if not custom and config.kind not in _KINDS:
        raise ValueError(
            f'model.kind = "{config.kind}" is not available; set it to one of:'
            f" {', '.join((AUTO, *_KINDS))}, or to module:factory of your own"
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


def _population(config: ModelConfig, spaces: Spaces, seed: int) -> Population:
    """Builds a network for each policy, with the same statistics of the observation for all."""
    observation = tuple(leaf for leaf in spaces.observation if leaf.name != POLICY)
    alone = msgspec.structs.replace(spaces, observation=observation, population=0, settings=())
    for key, value, only in (
        ("kind", chosen_kind(config, alone), "mlp"),
        ("core", config.core, "none"),
    ):
        if value != only:
            raise ValueError(
                f"model.{key} is {value!r}: the networks of a population (env.population) can have"
                f" {only!r} only"
            )
    plain = msgspec.structs.replace(config, normalise_obs=False, normalise_returns=False)
    one = build(plain, alone, seed=seed)
    observed = tuple(leaf for leaf in observation if not leaf.mask)
    normaliser = _normaliser(observed) if config.normalise_obs else None
    made = Population(
        one,
        spaces.population,
        normaliser=normaliser,
        normalise_returns=config.normalise_returns,
        seed=seed,
    )
    _finish(made, config, spaces)
    return made


def _finish(model: Model, config: ModelConfig, spaces: Spaces) -> None:
    model.wire = WIRES[config.wire]
    if spaces.settings:
        model.register_buffer(SETTINGS, torch.zeros(len(spaces.settings), dtype=torch.float64))


def _model(config: ModelConfig, spaces: Spaces, rng: torch.Generator) -> Model:
    observed = tuple(leaf for leaf in spaces.observation if not leaf.mask)
    if not observed:
        raise ValueError(
            "the observation is nothing but env.mask; give the network something to see"
        )
    previous = _previous(spaces) if config.previous else ()
    leaves = (*observed, *previous)
    normaliser = _normaliser(observed) if config.normalise_obs else None
    normalised = config.normalise_images and config.kind in NORMALISED_KINDS
    images = image_leaves(leaves) if normalised else ()
    for_policy = (*(leaf for leaf in acted_on(spaces) if not leaf.mask), *previous)

    def encoder(leaves: tuple[Leaf, ...]) -> nn.Module:
        if ":" in config.kind:
            return custom_encoder(config, leaves, rng, normaliser)
        if config.kind == "grid":
            return Grid(leaves, config, rng, unscaled=len(previous), binary=spaces.binary)
        return _KINDS[config.kind](leaves, config, rng, unscaled=len(previous))

    encoders = [encoder(for_policy), *([encoder(leaves)] if config.separate else [])]
    if encoders[0] is encoders[-1] and config.separate:
        raise ValueError(
            f'model.kind = "{config.kind}" made the same module twice; make a new one in every'
            " call, or set model.separate = false"
        )
    trunks = [Trunk(one, _core(config, _units(one), rng)) for one in encoders]
    distribution = distribution_of(spaces.action)
    core = trunks[0].core
    units = _units(encoders[0]) if core is None else core.units
    model = Model(
        leaves,
        distribution,
        acted_on=for_policy,
        policy=trunks[0],
        value=trunks[1] if config.separate else None,
        heads=_heads(config, spaces.action, distribution, units, rng),
        mask=next((leaf.name for leaf in spaces.observation if leaf.mask), ""),
        normaliser=normaliser,
        images=ImageNormaliser(images) if images else None,
        normalise_returns=config.normalise_returns,
    )
    _finish(model, config, spaces)
    return model


def _previous(spaces: Spaces) -> tuple[Leaf, ...]:
    leaves = previous_leaves(spaces)
    taken = {leaf.name for leaf in spaces.observation} & {leaf.name for leaf in leaves}
    if taken:
        raise ValueError(
            f"model.previous adds {', '.join(sorted(taken))} to the observation, which has it"
            " already; set model.previous = false, or rename the observation's with a wrapper"
        )
    return leaves


def _normaliser(observed: tuple[Leaf, ...]) -> Normaliser | None:
    """Returns the normaliser of the observation's numbers; None = there are only images or
    categories."""
    normaliser = Normaliser(observed)
    return normaliser if normaliser.leaves else None


def _units(encoder: nn.Module) -> int:
    units = encoder.units
    assert isinstance(units, int)
    return units


def _core(config: ModelConfig, inputs: int, rng: torch.Generator) -> Core | None:
    if config.core == "none":
        return None
    units, bias = config.core_units, config.core_bias
    if config.core == "transformer":
        layers, context = config.core_layers, config.core_context
        return Transformer(inputs, units, rng, layers=layers, context=context, bias=bias)
    return CORES[config.core](inputs, units, rng, bias=bias)


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
