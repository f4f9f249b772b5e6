"""Fully connected networks over flattened observations."""

import math

import torch
from torch import Tensor, nn

from learner.config import ModelConfig
from learner.models.model import Model, Output
from learner.spaces import Leaf, Spaces

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}

# Orthogonal gains. A hidden layer's keeps the size of its signal through the activation; a small
# policy head starts all actions almost equally likely.
_HIDDEN_GAIN = math.sqrt(2)
_POLICY_GAIN = 0.01
_VALUE_GAIN = 1.0


class Mlp(Model):
    """Hidden layers, a policy head and a value head; two towers when `config.separate`."""

    obs_scale: Tensor | None

    def __init__(self, config: ModelConfig, spaces: Spaces, *, rng: torch.Generator) -> None:
        super().__init__()
        # Leaves in the order in which their features are concatenated.
        self._leaves = spaces.observation
        features = sum(math.prod(leaf.shape) for leaf in self._leaves)
        # Derived from the config, so it is not persistent: it is no weight and never travels.
        self.register_buffer("obs_scale", _scale(config.obs_scale, features), persistent=False)
        width = config.hidden[-1] if config.hidden else features
        self.trunk = _tower(config, features, rng)
        self.value_trunk = _tower(config, features, rng) if config.separate else None
        self.policy_head = _linear(width, spaces.action.n, _POLICY_GAIN, rng)
        self.value_head = _linear(width, 1, _VALUE_GAIN, rng)

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.policy_head(self.trunk(self._features(obs)))
        return logits

    def forward(self, obs: dict[str, Tensor]) -> Output:
        features = self._features(obs)
        hidden = self.trunk(features)
        seen_by_value = hidden if self.value_trunk is None else self.value_trunk(features)
        return Output(self.policy_head(hidden), self.value_head(seen_by_value).squeeze(-1))

    def _features(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [_flatten(obs[leaf.name], leaf) for leaf in self._leaves]
        features = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        scale = self.obs_scale
        return features if scale is None else features / scale


def _flatten(value: Tensor, leaf: Leaf) -> Tensor:
    """[..., *leaf.shape] of any dtype -> [..., features] float32; free when it already is that."""
    dims = len(leaf.shape)
    flat = value.flatten(value.dim() - dims) if dims else value.unsqueeze(-1)
    return flat.float()


def _scale(obs_scale: tuple[float, ...], features: int) -> Tensor | None:
    if not obs_scale:
        return None
    if len(obs_scale) != features:
        raise ValueError(
            f"model.obs_scale has {len(obs_scale)} numbers, the observation has {features} "
            f"features; give one number for each feature, or leave it empty"
        )
    return torch.tensor(obs_scale, dtype=torch.float32)


def _tower(config: ModelConfig, features: int, rng: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((features, *config.hidden), config.hidden, strict=False):
        layers += [_linear(before, after, _HIDDEN_GAIN, rng), _ACTIVATIONS[config.activation]()]
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer
