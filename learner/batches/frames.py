"""Builds what the network sees from rows that travelled once: stacked frames, the step before."""

import functools

import torch
from torch import Tensor

from headrace.learner.spaces import DEAD, SHOWN_REWARD, Action, Spaces


def observed(
    tensors: dict[str, Tensor], spaces: Spaces, *, previous: bool = False
) -> dict[str, Tensor]:
    """Returns a batch's observations by leaf name, [T+1, B, *leaf.seen]; stacked leaves are copies.

    A row sees itself and the rows before it, but none from before its episode: those places show
    the episode's first row. Rows before row 0 are taken as they were sent. `previous`: with the
    leaves of the step before, see previous_leaves.
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
    if previous:
        out |= _previous(tensors, spaces.action)
    return out


def begins(flags: Tensor) -> Tensor:
    """Returns [T+1, B]: this row begins an episode, so memory from before it is cleared. For row 0
    the sampler did that."""
    dead = (flags & DEAD) != 0
    return torch.cat([torch.zeros_like(dead[:1]), dead])


def _previous(tensors: dict[str, Tensor], action: Action) -> dict[str, Tensor]:
    """Returns the leaves of the step before, [T+1, B, ...]; empty ones after a dead step, whose
    action was ignored."""
    first = begins(tensors["flags"])
    rows = torch.cat([tensors["before.action"], tensors["action"]])
    if action.single:
        rows = rows.unsqueeze(-1)
    choices, numbers = rows.tensor_split([len(action.categories)], dim=-1)
    out: dict[str, Tensor] = {}
    if action.categories:
        out["previous.choices"] = choices.long().masked_fill(first.unsqueeze(-1), -1)
    if action.numbers:
        shown = _shown(numbers, action).masked_fill(first.unsqueeze(-1), 0.0)
        out["previous.numbers"] = shown
    reward = torch.cat([tensors["before.reward"], tensors["reward"]])
    out["previous.reward"] = reward.clamp(-SHOWN_REWARD, SHOWN_REWARD).masked_fill(first, 0.0)
    return out


def _shown(numbers: Tensor, action: Action) -> Tensor:
    """Converts numbers as the policy drew them to units of half the range, if there is one."""
    squashed, limit = _limits(action, numbers.device)
    cut = torch.minimum(torch.maximum(numbers, -limit), limit)
    return torch.where(squashed, numbers.tanh(), cut) if action.squash else cut


@functools.cache
def _limits(action: Action, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns, by number, whether it is squashed, and at what size it is cut: on the device."""
    return torch.tensor(action.squashed, device=device), torch.tensor(action.shown, device=device)


def _sources(flags: Tensor, stack: int) -> Tensor:
    """Returns [T+1, B, stack]: where each frame lies among the [T+stack, B] rows that travelled."""
    length, columns = flags.shape
    device = flags.device
    row = torch.arange(length + 1, device=device).view(-1, 1, 1)
    # The first row of each row's episode. History is row -(stack-1) and on: as old as can be seen.
    oldest = 1 - stack
    start = torch.where(begins(flags), row[:, 0], oldest).cummax(0).values
    seen = row + torch.arange(oldest, 1, device=device)
    seen = torch.maximum(seen, start.unsqueeze(-1))
    return (seen - oldest) * columns + torch.arange(columns, device=device).view(-1, 1)
