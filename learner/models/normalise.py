"""Running statistics that travel with the weights: of observations, and of returns.

The learner moves them; samplers only receive them. All are float64 buffers.
"""

import math

import torch
from torch import Tensor, nn

from learner.spaces import Leaf

_EPS = 1e-8
FARTHEST = 10.0  # deviations
_SLOWEST = 0.01  # a return's share of the running statistics, once there are many
# Returns that do not vary yet must not be blown up.
_LEAST_STD = 1e-2


def is_number(leaf: Leaf) -> bool:
    """Neither an image nor a category nor a mask."""
    return not (leaf.image or leaf.categories or leaf.mask)


class Normaliser(nn.Module):
    """Numbers of the observation by the mean and the deviation of all that were trained on."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = tuple(leaf for leaf in leaves if is_number(leaf))
        self._widths = [math.prod(leaf.seen) for leaf in self.leaves]
        features = sum(self._widths)
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("var", torch.ones(features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same leaves, the numbers among them float32 and normalised."""
        seen = dict(obs)
        factor, begin = self.factor(), 0
        for leaf, width in zip(self.leaves, self._widths, strict=True):
            here = slice(begin, begin + width)
            begin += width
            # float64 before the difference: a large mean would take the digits that count.
            x = obs[leaf.name].double()
            y = (x - self.mean[here].view(leaf.seen)) * factor[here].view(leaf.seen)
            y = y.clamp(-FARTHEST, FARTHEST)
            seen[leaf.name] = torch.where(self.count > 0, y, x).float()
        return seen

    def factor(self) -> Tensor:
        """What a distance to the mean is multiplied with."""
        return (self.var + _EPS).rsqrt()

    @torch.no_grad()
    def delta(self, obs: dict[str, Tensor], live: Tensor) -> Tensor:
        """What the rows that are `live` [...] add: their count, then for each number the sum of its
        distance to the mean and of that squared. Those of several ranks may be added up.

        The leaves may have more rows than `live`: the last one of an unroll is the first of the
        next, and is counted there.
        """
        rows = [
            obs[leaf.name][: len(live)].double().reshape(*live.shape, width)
            for leaf, width in zip(self.leaves, self._widths, strict=True)
        ]
        weight = live.double().unsqueeze(-1)
        # Not a product: what is not live may hold anything.
        distance = torch.where(weight > 0, torch.cat(rows, dim=-1) - self.mean, 0.0)
        distance = distance.reshape(-1, len(self.mean))
        return torch.cat([weight.sum().view(1), distance.sum(0), distance.square().sum(0)])

    @torch.no_grad()
    def merge(self, delta: Tensor) -> None:
        """Takes in what `delta` found since the last merge. Numbers too large to square are left
        out."""
        added, (sums, squares) = delta[:1], delta[1:].view(2, -1)
        total = self.count + added
        moved = sums / total.clamp(min=1)
        var = (self.var * self.count + squares) / total.clamp(min=1) - moved.square()
        good = (added > 0) & delta.isfinite().all()
        self.mean.copy_(torch.where(good, self.mean + moved, self.mean))
        self.var.copy_(torch.where(good, var.clamp(min=0), self.var))
        self.count.copy_(torch.where(good, total, self.count).squeeze())


class Returns(nn.Module):
    """PopArt (van Hasselt et al., 2016): the value head predicts returns less their mean, in
    deviations; when those move, its layer is changed so that what it says stays the same."""

    mean: Tensor
    std: Tensor
    updates: Tensor

    def __init__(self, value_head: nn.Linear) -> None:
        super().__init__()
        self._head = (value_head,)  # the model's own layer, not a part of this module
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        """From what the head says to the units of the scaled rewards."""
        return value * self.std.float() + self.mean.float()

    @torch.no_grad()
    def merge(self, total: Tensor, squares: Tensor, count: Tensor) -> None:
        """Takes in so many returns by their sum and the sum of their squares, of all ranks."""
        total, squares, count = (x.to(self.mean) for x in (total, squares, count))
        good = (count > 0) & total.isfinite() & squares.isfinite()
        updates = self.updates + good
        share = torch.where(good, (1 / updates.double().clamp(min=1)).clamp(min=_SLOWEST), 0.0)
        count = count.clamp(min=1)
        mean = torch.where(good, torch.lerp(self.mean, total / count, share), self.mean)
        square = self.std.square() + self.mean.square()
        square = torch.where(good, torch.lerp(square, squares / count, share), square)
        std = (square - mean.square()).clamp(min=0).sqrt().clamp(min=_LEAST_STD)
        self.move(mean, torch.where(good, std, self.std))
        self.updates.copy_(updates)

    @torch.no_grad()
    def move(self, mean: Tensor, std: Tensor) -> None:
        """Other statistics, and a head that says the same with them."""
        (head,) = self._head
        head.weight.copy_(head.weight.double() * (self.std / std))
        head.bias.copy_((self.std * head.bias.double() + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)
