"""What every network is: observations in; action-distribution parameters and a value out.

Shapes: `...` stands for any leading dimensions ([T, B], [B], ...); A is the number of actions.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class Output(NamedTuple):
    """What the learner's losses read; both float32, whatever numbers the network multiplied."""

    params: Tensor  # [..., A] logits
    value: Tensor  # [...]


class Model(nn.Module, ABC):
    """A policy and a value function over named observation leaves."""

    # Its time goes into convolutions: 16-bit products pay.
    convolutional: ClassVar[bool] = False

    # What the layers before the heads hold. A copy that acts may hold fewer bits.
    held = torch.float32

    policy_head: nn.Linear
    value_head: nn.Linear

    @abstractmethod
    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        """Only the logits [..., A]: a sampler does not pay for a value it never reads."""

    @abstractmethod
    def forward(self, obs: dict[str, Tensor]) -> Output:
        """The logits and the value, from leaves of shape [..., *leaf.seen]."""
