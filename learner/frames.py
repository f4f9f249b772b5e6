"""From rows that travelled once to the frames that the network sees side by side."""

import torch
from torch import Tensor

from learner.spaces import DEAD, Spaces


def observed(tensors: dict[str, Tensor], spaces: Spaces) -> dict[str, Tensor]:
    """A batch's observations by leaf name, [T+1, B, *leaf.seen]; stacked leaves are copies.

    A row sees itself and the rows before it, but none from before its episode: those places show
    the episode's first row. What came before row 0 is taken as it was sent.
    """
    out: dict[str, Tensor] = {}
    indices: dict[int, Tensor] = {}  # the same for all leaves of one stack
    for leaf in spaces.observation:
        rows = tensors[f"obs.{leaf.name}"]
        if leaf.stack > 1:
            if leaf.stack not in indices:
                indices[leaf.stack] = _sources(tensors["flags"], leaf.stack)
            index = indices[leaf.stack]
            picked = rows.flatten(0, 1).index_select(0, index.flatten())
            rows = picked.view(*index.shape, *leaf.shape)
        out[leaf.name] = rows
    return out


def _sources(flags: Tensor, stack: int) -> Tensor:
    """[T+1, B, stack]: where each frame lies among the [T+stack, B] rows that travelled."""
    length, columns = flags.shape
    device = flags.device
    row = torch.arange(length + 1, device=device).view(-1, 1, 1)
    # The first row of each row's episode. History is row -(stack-1) and on: as old as can be seen.
    oldest = 1 - stack
    begins = torch.where((flags & DEAD) != 0, row[1:, 0], oldest)
    begins = torch.cat([begins.new_full((1, columns), oldest), begins]).cummax(0).values
    seen = row + torch.arange(oldest, 1, device=device)
    seen = torch.maximum(seen, begins.unsqueeze(-1))
    return (seen - oldest) * columns + torch.arange(columns, device=device).view(-1, 1)
