"""The LSTM over an unroll on a CPU: oneDNN's, over stretches without a reset."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def lstm(
    x: Tensor, memory: Tensor, begins: Tensor, inputs: nn.Linear, recurrent: nn.Linear
) -> Tensor:
    """Maps inputs [T, B, I] and the memory [B, 2U] to outputs [T, B, U]; where `begins` [T, B] is
    set, a row starts from an empty memory."""
    weights = [inputs.weight, recurrent.weight, inputs.bias, recurrent.bias]
    memory = memory * (~begins[0]).unsqueeze(-1).to(memory.dtype)
    if not begins[1:].any():
        return _without_reset(x, memory, weights)
    steps, columns, _ = x.shape
    places, outputs = [], []
    # From here on each stretch is a column of its own; those of a column's start go on from its
    # memory, all others from an empty one.
    flat, memories = x.flatten(0, 1), torch.cat([memory, memory.new_zeros(1, memory.shape[1])])
    for first, column, length in _stretches(begins):
        ahead = torch.arange(int(length[0])).unsqueeze(-1)
        inside = ahead < length
        place = (first + ahead).clamp(max=steps - 1) * columns + column
        own = memories[torch.where(first == 0, column, columns)]
        outputs.append(_without_reset(flat[place], own, weights)[inside])
        places.append(place[inside])
    found = torch.cat(outputs)
    return found[torch.cat(places).argsort()].view(steps, columns, -1)


def _without_reset(x: Tensor, memory: Tensor, weights: list[Tensor]) -> Tensor:
    # oneDNN does not look at sizes: it writes past the end of what is too small.
    parts = memory.view(x.shape[1], 2, weights[1].shape[1]).unbind(1)
    state = [part.unsqueeze(0).contiguous() for part in parts]
    has_biases, layers, dropout, train, both_ways, batch_first = True, 1, 0.0, True, False, False
    outputs: Tensor = torch.lstm(
        x, state, weights, has_biases, layers, dropout, train, both_ways, batch_first
    )[0]
    return outputs


def _stretches(begins: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields the first row, the column and the length of each, longest first: together those that
    are at most twice as long as others, so that little is computed behind their ends."""
    starts = begins.t().clone()
    starts[:, 0] = True
    column, first = starts.nonzero(as_tuple=True)
    ends = torch.cat([first[1:], first[:1]])  # of the last of a column that is 0, as the next's is
    length = torch.where(ends == 0, len(begins), ends) - first
    order = length.argsort(descending=True)
    at, ordered = 0, length[order]
    while at < len(order):
        after = int((2 * ordered >= ordered[at]).sum())
        these = order[at:after]
        yield first[these], column[these], length[these]
        at = after
