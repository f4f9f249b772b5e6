"""Fully connected networks over flattened observations."""

import torch
from torch import Tensor, nn

from learner.config import ModelConfig
from learner.models.features import Features
from learner.models.layers import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, head, linear
from learner.models.model import Model, Output
from learner.spaces import Spaces

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class Mlp(Model):
    """Hidden layers, a policy head and a value head; two towers when `config.separate`."""

    def __init__(self, config: ModelConfig, spaces: Spaces, *, rng: torch.Generator) -> None:
        super().__init__()
        self.features = Features(spaces.observation, config.obs_scale)
        features = self.features.count
        width = config.hidden[-1] if config.hidden else features
        self.trunk = _tower(config, features, rng)
        self.value_trunk = _tower(config, features, rng) if config.separate else None
        self.policy_head = linear(width, spaces.action.n, POLICY_GAIN, rng)
        self.value_head = linear(width, 1, VALUE_GAIN, rng)

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        return head(self.policy_head, self.trunk(self._input(obs)))

    def forward(self, obs: dict[str, Tensor]) -> Output:
        features = self._input(obs)
        hidden = self.trunk(features)
        seen_by_value = hidden if self.value_trunk is None else self.value_trunk(features)
        value = head(self.value_head, seen_by_value).squeeze(-1)
        return Output(head(self.policy_head, hidden), value)

    def _input(self, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.features(obs)
        return features.to(self.held)


def _tower(config: ModelConfig, features: int, rng: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((features, *config.hidden), config.hidden, strict=False):
        layers += [linear(before, after, HIDDEN_GAIN, rng), _ACTIVATIONS[config.activation]()]
    return nn.Sequential(*layers)
