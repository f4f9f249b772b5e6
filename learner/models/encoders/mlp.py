"""Fully connected layers over flattened observations."""

import torch
from torch import Tensor, nn

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.features import Features
from headrace.learner.models.layers import HIDDEN_GAIN, linear, weights_dtype
from headrace.learner.spaces import Leaf

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class Mlp(nn.Module):
    """Stacks hidden layers; without any, it returns the features themselves."""

    def __init__(
        self, leaves: tuple[Leaf, ...], config: ModelConfig, rng: torch.Generator, *, unscaled: int
    ) -> None:
        super().__init__()
        self.features = Features(leaves, config.obs_scale, unscaled=unscaled)
        widths = (self.features.count, *config.hidden)
        layers: list[nn.Module] = []
        for before, after in zip(widths, config.hidden, strict=False):
            layers += [linear(before, after, HIDDEN_GAIN, rng), _ACTIVATIONS[config.activation]()]
        self.layers = nn.Sequential(*layers)
        self.units = widths[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.features(obs)
        hidden: Tensor = self.layers(features.to(weights_dtype(self.layers)))
        return hidden
