"""From the [model] section to a network: the one door for learners, samplers and evaluators."""

from collections.abc import Callable

import torch

from learner.config import ModelConfig
from learner.models.mlp import Mlp
from learner.models.model import Model, Output
from learner.models.nature import Nature
from learner.spaces import Spaces

__all__ = ["Model", "Output", "build"]

_KINDS: dict[str, Callable[..., Model]] = {"mlp": Mlp, "nature": Nature}


def build(config: ModelConfig, spaces: Spaces, *, seed: int) -> Model:
    """The network on the CPU; its weights depend on `seed` alone.

    The global random state is left as it was: building a network must not change what the caller
    draws next.
    """
    if config.kind not in _KINDS:
        raise ValueError(
            f'model.kind = "{config.kind}" is not available; set it to one of: {", ".join(_KINDS)}'
        )
    rng = torch.Generator().manual_seed(seed)
    # torch fills a new layer from the global generator before we overwrite it with our own draw.
    with torch.random.fork_rng(devices=[]):
        return _KINDS[config.kind](config, spaces, rng=rng)
