"""Calls a network once for the rows of several samplers."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.actors.acting.central.slot import Slot
from headrace.actors.acting.networks import ActingNetwork
from headrace.actors.acting.policy import Policy
from headrace.learner.models.kernels.graph import Graph

_LEAST_ROWS: Final = 8  # of the smallest size; each other is twice the one before

Asked = Sequence[tuple[Slot, int]]  # whose first rows are to be computed


class Call(Protocol):
    """Declares what computes the asked rows, and writes the network's numbers beside them."""

    def __call__(self, asked: Asked) -> None: ...


class JoinedCall:
    """Calls the network with as many rows as are asked for."""

    def __init__(self, policy: Policy) -> None:
        self._network, self._memory = policy.network, policy.memory

    def __call__(self, asked: Asked) -> None:
        names = self._network.names
        obs = {name: _joined([slot.inputs[name][:rows] for slot, rows in asked]) for name in names}
        before = _joined([slot.before[:rows] for slot, rows in asked]) if self._memory else None
        params, after = self._network.params(obs, before)
        _give(asked, params, after)


class SizedCall:
    """Calls the network with one of a few numbers of rows, on tensors that stay where they are, so
    that on a GPU each such call is one graph: the rows go there, and the numbers come back, from
    pinned memory."""

    def __init__(self, policy: Policy, device: str) -> None:
        assert isinstance(policy.network, ActingNetwork)
        self._network, self._memory, self._device = policy.network, policy.memory, device
        self._sizes: dict[int, _Size] = {}  # by rows

    def __call__(self, asked: Asked) -> None:
        rows = max(_LEAST_ROWS, 1 << (sum(rows for _, rows in asked) - 1).bit_length())
        if rows not in self._sizes:
            like = asked[0][0]
            self._sizes[rows] = _Size(self._network, self._memory, like, rows, self._device)
        self._sizes[rows](asked)


class _Size:
    """Holds the tensors of one number of rows. What is left in rows that nobody asks for is
    computed too, and read by nobody."""

    def __init__(
        self, network: ActingNetwork, memory: int, like: Slot, rows: int, device: str
    ) -> None:
        self._network, on_gpu = network, device != "cpu"

        def room(array: NDArray[Any]) -> tuple[Tensor, Tensor]:
            """Returns tensors for so many rows: of the host, and of the device."""
            host = torch.from_numpy(np.zeros((rows, *array.shape[1:]), array.dtype))
            host = host.pin_memory() if on_gpu else host
            return host, host.to(device, copy=True)

        self._inputs = {name: room(like.inputs[name]) for name in network.names}
        self._before = room(like.before) if memory else None
        self._params, self._after = room(like.params)[0], room(like.after)[0]
        self._graph = Graph(self._run, capture=on_gpu, name="acting")
        self._done: torch.cuda.Event | None = None
        if on_gpu:
            self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def __call__(self, asked: Asked) -> None:
        at = 0
        for slot, rows in asked:
            part = slice(at, at + rows)
            for name, (host, _) in self._inputs.items():
                host.numpy()[part] = slot.inputs[name][:rows]
            if self._before is not None:
                self._before[0].numpy()[part] = slot.before[:rows]
            at += rows
        with torch.inference_mode():
            self._graph()
        if self._done is not None:
            self._done.record()
            self._done.synchronize()
        _give(asked, self._params.numpy(), None if self._before is None else self._after.numpy())

    def _run(self) -> None:
        """Computes all rows."""
        pairs = [*self._inputs.values(), *([self._before] if self._before is not None else [])]
        for host, there in pairs:
            there.copy_(host, non_blocking=True)
        obs = {name: there for name, (_, there) in self._inputs.items()}
        params, after = self._network.computed(obs, self._before and self._before[1])
        self._params.copy_(params, non_blocking=True)
        if after is not None:
            self._after.copy_(after, non_blocking=True)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _give(asked: Asked, params: NDArray[Any], after: NDArray[Any] | None) -> None:
    """Writes each sampler's numbers into its slot."""
    at = 0
    for slot, rows in asked:
        slot.params[:rows] = params[at : at + rows]
        if after is not None:
            slot.after[:rows] = after[at : at + rows]
        at += rows
