"""Sorts steps by the policy that plays them: each policy computes all of its steps at once."""

from typing import NamedTuple

import torch
from torch import Tensor

# A block of steps has at most so many times those of the average policy, or the few that play long
# would fill up the blocks of all others.
_WIDEST = 2


class Places(NamedTuple):
    """Holds where each step goes: blocks [blocks, width], each of one policy, the last block of a
    policy filled up with any step."""

    present: Tensor  # [R] the policies that play, sorted
    row: Tensor | None  # [blocks] whose of these a block is; None = block i is of the i-th
    source: Tensor  # [blocks * width] the step that stands there
    place: Tensor  # [N] where each step stands
    width: int

    def spread(self, rows: Tensor) -> Tensor:
        """Returns the steps [N, ...] as blocks [blocks, width, ...]."""
        return rows[self.source].view(-1, self.width, *rows.shape[1:])

    def collect(self, blocks: Tensor) -> Tensor:
        """Does the inverse."""
        steps: Tensor = blocks.flatten(0, 1)[self.place]
        return steps


def places_of(policies: Tensor) -> Places:
    """Returns the places of steps [N] that these policies play."""
    count = len(policies)
    order = policies.argsort(stable=True)
    present, index, counts = torch.unique_consecutive(
        policies[order], return_inverse=True, return_counts=True
    )
    width = min(int(counts.max()), -(-_WIDEST * count // len(present)))
    blocks = (counts + width - 1) // width
    # Of each policy: its first place, and its first step in the sorted order.
    begins, first = (blocks.cumsum(0) - blocks) * width, counts.cumsum(0) - counts
    sorted_place = torch.arange(count, device=policies.device) + (begins - first)[index]
    source = order.new_zeros(int(blocks.sum()) * width)
    source[sorted_place] = order
    place = torch.empty_like(order)
    place[order] = sorted_place
    row = None
    if len(source) != len(present) * width:
        row = torch.arange(len(present), device=policies.device).repeat_interleave(blocks)
    return Places(present, row, source, place, width)
