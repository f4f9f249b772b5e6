"""The weights of a network that is spread over the ranks, as one buffer."""

import numpy as np
import torch
from torch import nn

from headrace.learner.sharding.parts import whole
from headrace.learner.weights import layout, view_of


class ShardedWeights:
    """Dumps a network one tensor after another, into the memory of the host of the first rank."""

    def __init__(self, model: nn.Module, *, first: bool) -> None:
        self._layout = layout(model)
        self._tensors = model.state_dict()
        self._first = first  # this rank keeps what all of them gather

    @torch.no_grad()
    def dump(self) -> memoryview:
        """Returns a copy of what the network holds now, on the first rank; all of them call it."""
        nbytes = sum(entry.nbytes for entry in self._layout)
        body = np.empty(nbytes if self._first else 0, np.uint8)
        for entry in self._layout:
            gathered = whole(self._tensors[entry.name])
            if self._first:
                view_of(torch.from_numpy(body), entry).copy_(gathered)
        return body.data
