"""The network: observations in; action-distribution parameters and a value out.

    observation leaves -> encoder -> (core) -> policy head -> parameters
                       -> value encoder -> (value core) -> value head -> value

With one trunk the value head reads what the policy head reads. Shapes: `...` stands for any leading
dimensions ([T, B], [B], ...), N for rows, S for the numbers of one memory, P for parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headrace.learner.models.cores import Core
from headrace.learner.models.distribution import Distribution
from headrace.learner.models.layers import head
from headrace.learner.models.normalise import ImageNormaliser, Normaliser, PopArt
from headrace.learner.spaces import Leaf


class Output(NamedTuple):
    """Holds what the losses read, in float32 whatever dtype the network multiplied in."""

    params: Tensor  # [..., P], as the action's distribution reads them
    value: Tensor  # [...], in the units of the scaled rewards


class Trunk(NamedTuple):
    """Holds the layers from the observation to a head."""

    encoder: nn.Module
    core: Core | None


class Heads(NamedTuple):
    policy: nn.Linear
    value: nn.Linear
    log_std: Tensor | None  # [D] of a Box whose deviations depend on no observation


class Model(nn.Module):
    """Computes a policy and a value function over named observation leaves."""

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        distribution: Distribution,
        *,
        acted_on: tuple[Leaf, ...],
        policy: Trunk,
        value: Trunk | None,
        heads: Heads,
        mask: str = "",
        normaliser: Normaliser | None = None,
        images: ImageNormaliser | None = None,
        normalise_returns: bool = False,
    ) -> None:
        super().__init__()
        self.wire = torch.float32  # of the parameters on their way to samplers
        self.leaves = leaves  # what the encoders see
        self.acted_on = acted_on  # those of them that the policy's sees: all but env.critic
        self.mask = mask  # the leaf that says which choices are allowed; empty = all are
        self.distribution = distribution
        self.normaliser, self.images = normaliser, images
        self.encoder, self.core = policy
        self.value_encoder = None if value is None else value.encoder
        self.value_core = None if value is None else value.core
        self.policy_head, self.value_head = heads.policy, heads.value
        self.log_std = None if heads.log_std is None else nn.Parameter(heads.log_std)
        self.returns = PopArt(heads.value) if normalise_returns else None
        # Numbers that an environment carries from step to step: the policy's, then the value's.
        self.memory = sum(core.size for core in (self.core, self.value_core) if core is not None)
        # Most of its time goes into convolutions, so 16-bit products pay.
        self.convolutional = bool(getattr(self.encoder, "convolutional", False))

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of all leaves it needs, the mask among them."""
        names = tuple(leaf.name for leaf in self.leaves)
        return (*names, self.mask) if self.mask else names

    def policy(
        self, obs: dict[str, Tensor], memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Computes one step of leaves [N, *leaf.seen]: parameters [N, P] and the memory [N, S]
        after it.

        A sampler does not pay for a value it never reads, but the value's memory moves on too.
        """
        seen = self.seen(obs)
        hidden = self.encoder(seen)
        if self.core is None:
            return self.params(hidden, obs), None
        if memory is None:
            memory = hidden.new_zeros(len(hidden), self.memory, dtype=torch.float32)
        size = self.core.size
        hidden, after = self.core.step(hidden, memory[:, :size])
        if self.value_core is not None:
            assert self.value_encoder is not None
            _, valued_after = self.value_core.step(self.value_encoder(seen), memory[:, size:])
            after = torch.cat([after, valued_after], -1)
        return self.params(hidden, obs), after

    def forward(
        self, obs: dict[str, Tensor], memory: Tensor | None = None, begins: Tensor | None = None
    ) -> Output:
        """Computes parameters and value of leaves [..., *leaf.seen].

        With a core: leaves [T, B, *leaf.seen], the memory [B, S] that goes into the first row (None
        = nothing is remembered), and `begins` [T, B]: rows before which everything is forgotten.
        """
        first = self.leaves[0]
        lead = obs[first.name].shape[: obs[first.name].dim() - len(first.seen)]
        rows = obs
        if len(lead) != 1:
            rows = {x.name: obs[x.name].reshape(-1, *x.seen) for x in self.leaves}
        seen = self.seen(rows)
        hidden = self.encoder(seen)
        valued = hidden if self.value_encoder is None else self.value_encoder(seen)
        hidden, valued = hidden.reshape(*lead, -1), valued.reshape(*lead, -1)
        if self.core is not None:
            size = self.core.size
            if memory is None:
                memory = hidden.new_zeros(lead[1], self.memory, dtype=torch.float32)
            hidden = self.core(hidden, memory[:, :size], begins)
            if self.value_core is None:
                valued = hidden
            else:
                valued = self.value_core(valued, memory[:, size:], begins)
        value = head(self.value_head, valued).squeeze(-1)
        if self.returns is not None:
            value = self.returns(value)
        return Output(self.params(hidden, obs), value)

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns what an encoder is given."""
        for normaliser in (self.normaliser, self.images):
            obs = obs if normaliser is None else normaliser(obs)
        return obs

    def params(self, hidden: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """Returns [..., P] of what the policy head reads, [..., units]."""
        params = head(self.policy_head, hidden)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand(*params.shape[:-1], -1)], dim=-1)
        return self.distribution.masked(params, obs[self.mask]) if self.mask else params
