"""Turns a batch in the receiver's memory into a sample on the device."""

import torch
from torch import Tensor

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import LossBatch
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.frames import begins, observed
from headrace.learner.spaces import Spaces


class BatchUpload:
    """Copies a batch to the device. On a GPU it has a stream of its own, from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if self._stream is None:
            return batch.tensors
        with torch.cuda.stream(self._stream):
            out = {
                name: tensor.to(self._device, non_blocking=True)
                for name, tensor in batch.tensors.items()
            }
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in out.values():
            tensor.record_stream(current)
        return out


def sample_of(
    tensors: dict[str, Tensor], spaces: Spaces, *, previous: bool, unrolls: int
) -> Sample:
    """Returns the whole batch as the network and the loss take it."""
    memory = tensors.get("memory")
    return Sample(
        obs=observed(tensors, spaces, previous=previous),
        memory=None if memory is None else memory[0],
        begins=None if memory is None else begins(tensors["flags"]),
        loss=LossBatch(tensors["action"], tensors["logp"], tensors["reward"], tensors["flags"]),
        unrolls=unrolls,
    )
