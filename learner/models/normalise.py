"""Running statistics that travel with the weights: of observations, and of returns.

The learner moves them; samplers only receive them. All are float64 buffers.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from headrace.learner.spaces import Leaf

_EPS = 1e-8
FARTHEST = 10.0  # deviations
_SLOWEST = 0.01  # a return's share of the running statistics, once there are many
# Of an unroll's frames one in so many is counted: each is much like the one before.
_FRAMES_EVERY = 8
_BYTE = 255.0
_LEAST_BYTES = 1.0  # a deviation: an image that never moves is not blown up
# Returns that do not vary yet must not be blown up.
_LEAST_STD = 1e-2


class Moments(NamedTuple):
    """Holds the moments of F numbers over `rows` rows, float64."""

    rows: Tensor  # [] how many
    mean: Tensor  # [F]
    squares: Tensor  # [F] the sum of their squared distances to the mean


@torch.no_grad()
def moments(rows: Tensor, live: Tensor, total: Callable[[Tensor], Tensor]) -> Moments:
    """Returns those of the rows [..., F] that are `live` [...]; `total` adds up over the ranks.

    Two passes, the second one about the mean of all ranks: the difference of a mean square and a
    squared mean has no digit left when the mean is 1e8 deviations away from zero.
    """
    live = (live > 0).unsqueeze(-1)
    # Not a product: what is not live may hold anything.
    rows = torch.where(live, rows.double(), 0.0).reshape(-1, rows.shape[-1])
    live = live.reshape(-1, 1)
    sums = total(torch.cat([live.double().sum().view(1), rows.sum(0)]))
    count, least = sums[0], sums[0].clamp(min=1)
    mean = sums[1:] / least
    distance = torch.where(live, rows - mean, 0.0)
    off, squares = total(torch.stack([distance.sum(0), distance.square().sum(0)])).unbind()
    off = off / least  # by which the mean was rounded
    return Moments(count, mean + off, (squares - count * off.square()).clamp(min=0))


_FIT = ("fit_weight", "target_mean", "target_square", "error_square")


@torch.no_grad()
def value_fit(values: Tensor, targets: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Returns means from which explained() tells how well the values fit their targets; `share`:
    of each step in the means. Its sum is one of them, because it is 1 but for rounding."""
    targets, share = targets.double().flatten(), share.double().flatten()
    error = targets - values.flatten()
    weighted = targets * share
    sums = (share.sum(), weighted.sum(), weighted.dot(targets), (error * share).dot(error))
    return dict(zip(_FIT, sums, strict=True))


def explained(stats: dict[str, float]) -> dict[str, float]:
    """Replaces the means of value_fit() by the share of the targets' variance that the values
    explain: 1 = all, 0 = as one number for all would; at least -1; 0 of targets that are alike."""
    weight, *sums = (stats[name] for name in _FIT)
    mean, square, error = (each / (weight or 1.0) for each in sums)
    variance = square - mean * mean
    share = 1 - error / variance if variance > _EPS * square else 0.0
    others = {name: value for name, value in stats.items() if name not in _FIT}
    return others | {"explained_variance": max(share, -1.0)}


class Statistics(Protocol):
    """Holds running means and variances [F] of `count` rows."""

    mean: Tensor
    var: Tensor
    count: Tensor


@torch.no_grad()
def merge(into: Statistics, found: Moments) -> None:
    """Takes these moments into running ones, if they are finite and of any row."""
    added, mean, squares = found
    count, apart = into.count + added, mean - into.mean
    share = added / count.clamp(min=1)
    # Chan, Golub and LeVeque, 1979: no sum that is not about a mean.
    var = (1 - share) * (into.var + share * apart.square()) + squares / count.clamp(min=1)
    good = (added > 0) & mean.isfinite().all() & var.isfinite().all()
    into.mean.copy_(torch.where(good, into.mean + share * apart, into.mean))
    into.var.copy_(torch.where(good, var, into.var))
    into.count.copy_(torch.where(good, count, into.count))


def is_number(leaf: Leaf) -> bool:
    """Tells whether a leaf is neither an image nor a category nor a mask."""
    return not (leaf.image or leaf.categories or leaf.mask)


class Normaliser(nn.Module):
    """Normalises the observation's numbers by the mean and deviation of all trained ones."""

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
        """Returns the same leaves, the numbers among them float32 and normalised."""
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
        """Returns what a distance to the mean is multiplied with."""
        return (self.var + _EPS).rsqrt()

    @torch.no_grad()
    def update(
        self, obs: dict[str, Tensor], live: Tensor, total: Callable[[Tensor], Tensor]
    ) -> None:
        """Takes in the rows that are `live` [...], of all ranks; all of them call it. Numbers too
        large to square are left out.

        The leaves may have more rows than `live`: the last one of an unroll is the first of the
        next, and is counted there.
        """
        rows = [
            obs[leaf.name][: len(live)].double().reshape(*live.shape, width)
            for leaf, width in zip(self.leaves, self._widths, strict=True)
        ]
        merge(self, moments(torch.cat(rows, dim=-1), live, total))


class ImageNormaliser(nn.Module):
    """Normalises images: bytes less the mean of their pixel, by one deviation for the whole image.

    A background that stays is 0 then, and what moves before it, be it a pixel, is as large as what
    a network is made for. Until something was trained on, bytes are divided by 255.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = leaves
        self._widths = [math.prod(leaf.shape) for leaf in leaves]
        pixels = sum(self._widths)
        self.register_buffer("mean", torch.zeros(pixels, dtype=torch.float64))
        self.register_buffer("var", torch.full((pixels,), _BYTE**2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the same leaves, the images normalised, in the numbers that convolutions take."""
        seen, begin = dict(obs), 0
        for leaf, width in zip(self.leaves, self._widths, strict=True):
            here = slice(begin, begin := begin + width)
            x = obs[leaf.name]
            # Whole bytes: their differences are exact in 16 bits.
            mean = self.mean[here].round().view(leaf.shape)
            factor = self.var[here].mean().sqrt().clamp(min=_LEAST_BYTES).reciprocal()
            autocast = torch.is_autocast_enabled(x.device.type)
            dtype = torch.get_autocast_dtype(x.device.type) if autocast else torch.float32
            y = x.to(dtype).sub_(mean.to(dtype)).mul_(factor)
            seen[leaf.name] = y.clamp_(-FARTHEST, FARTHEST)
        return seen

    @torch.no_grad()
    def update(
        self, obs: dict[str, Tensor], live: Tensor, total: Callable[[Tensor], Tensor]
    ) -> None:
        """Takes in frames of steps that are `live` [T, B], of all ranks; all of them call it."""
        counted = live[::_FRAMES_EVERY]
        frames = []
        for leaf in self.leaves:
            rows = obs[leaf.name][: len(live) : _FRAMES_EVERY]
            newest = rows.select(2, leaf.stack - 1) if leaf.stack > 1 else rows
            frames.append(newest.flatten(2))
        merge(self, moments(torch.cat(frames, dim=-1), counted, total))


class ValueHead(Protocol):
    """Holds the last layer of a value network, or of many."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor: ...


class PopArt(nn.Module):
    """Implements PopArt (van Hasselt et al., 2016): the value head predicts returns less their
    mean, in deviations; when those move, its layer is changed so that its predictions stay the
    same."""

    mean: Tensor
    std: Tensor
    updates: Tensor

    def __init__(self, value_head: ValueHead) -> None:
        super().__init__()
        self._head = (value_head,)  # the model's own layer, not a part of this module
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        """Converts the head's output to the units of the scaled rewards."""
        return value * self.std.float() + self.mean.float()

    @torch.no_grad()
    def merge(self, found: Moments) -> None:
        """Takes in the returns of one batch, of all ranks."""
        count, mean, squares = found.rows, found.mean.squeeze(), found.squares.squeeze()
        good = (count > 0) & mean.isfinite() & squares.isfinite()
        updates = self.updates + good
        share = torch.where(good, (1 / updates.double().clamp(min=1)).clamp(min=_SLOWEST), 0.0)
        apart = torch.where(good, mean - self.mean, 0.0)
        spread = torch.where(good, squares / count.clamp(min=1), 0.0)
        var = (1 - share) * (self.std.square() + share * apart.square()) + share * spread
        std = var.sqrt().clamp(min=_LEAST_STD)
        self.move(self.mean + share * apart, torch.where(good, std, self.std))
        self.updates.copy_(updates)

    @torch.no_grad()
    def move(self, mean: Tensor, std: Tensor) -> None:
        """Sets other statistics, and changes the head so that it predicts the same with them."""
        (head,) = self._head
        head.weight.copy_(head.weight.double() * (self.std / std))
        head.bias.copy_((self.std * head.bias.double() + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)
