"""Observation leaves as one row of numbers."""

import math

import torch
from torch import Tensor, nn

from headrace.learner.spaces import Leaf


class Features(nn.Module):
    """Turns leaves of [..., *leaf.seen] into [..., count] float32, in the order of the leaves.

    Elements with categories become one number for each category: 1 at the one it has, 0 elsewhere.
    `scale` divides the numbers of all leaves but the last `unscaled` ones; empty = leave them as
    they are.
    """

    scale: Tensor | None

    def __init__(
        self, leaves: tuple[Leaf, ...], scale: tuple[float, ...] = (), *, unscaled: int = 0
    ) -> None:
        super().__init__()
        self._leaves = leaves
        self.count = sum(_width(leaf) for leaf in leaves)
        # All of these follow from the config. None is persistent: they are not weights and never
        # travel.
        self._dims = [len(leaf.seen) for leaf in leaves]
        for at, leaf in enumerate(leaves):
            if leaf.categories:
                element, category = _one_hot_index(leaf)
                self.register_buffer(f"element{at}", element, persistent=False)
                self.register_buffer(f"category{at}", category, persistent=False)
        rest = sum(_width(leaf) for leaf in leaves[len(leaves) - unscaled :])
        self.register_buffer("scale", _scale(scale, self.count, rest), persistent=False)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [self._part(at, leaf, obs[leaf.name]) for at, leaf in enumerate(self._leaves)]
        features = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        scale = self.scale
        return features if scale is None else features / scale

    def _part(self, at: int, leaf: Leaf, value: Tensor) -> Tensor:
        """Returns [..., width] float32; free when the leaf already is that."""
        dims = self._dims[at]
        flat = value.flatten(value.dim() - dims) if dims else value.unsqueeze(-1)
        if leaf.categories:
            # A comparison, not a scatter: a category that does not exist gives zeros, not a crash.
            element, category = getattr(self, f"element{at}"), getattr(self, f"category{at}")
            flat = flat.index_select(-1, element) == category
        return flat.float()


def _width(leaf: Leaf) -> int:
    return sum(leaf.categories) * leaf.stack if leaf.categories else math.prod(leaf.seen)


def _one_hot_index(leaf: Leaf) -> tuple[Tensor, Tensor]:
    """Returns, for each output number, the element it looks at and the category it asks for."""
    counts = leaf.categories * leaf.stack
    pairs = [(at, category) for at, n in enumerate(counts) for category in range(n)]
    element, category = torch.tensor(pairs, dtype=torch.int64).unbind(1)
    return element.contiguous(), category.contiguous()


def _scale(scale: tuple[float, ...], features: int, rest: int) -> Tensor | None:
    if not scale:
        return None
    if len(scale) != features - rest:
        raise ValueError(
            f"model.obs_scale has {len(scale)} numbers, the observation has {features - rest} "
            f"features; give one number for each feature, or leave it empty"
        )
    return torch.tensor((*scale, *(1.0,) * rest), dtype=torch.float32)
