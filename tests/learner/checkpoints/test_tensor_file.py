"""Tensors as a safetensors file, piece by piece; and the gathering of what is spread over ranks,
which goes on to its end on every rank, whatever becomes of the file."""

import contextlib
from pathlib import Path
from unittest import mock

import pytest
import safetensors.torch
import torch
from torch import Tensor

from headrace.broker import durable
from headrace.learner.checkpoints import checkpoint, tensor_file

GROUP = {
    "b.weight": torch.arange(6.0).view(2, 3).t(),  # not in order in memory
    "a.step": torch.tensor(7.5, dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
    "small": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "half": torch.tensor([0.5, -2.0, 3.0], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "count": torch.tensor([1 << 40]),
}


def test_the_file_is_what_safetensors_reads() -> None:
    with tensor_file.gathering({"group": GROUP}) as found:
        data = b"".join(tensor_file.pieces(GROUP, found))
    read = safetensors.torch.load(data)
    assert read.keys() == GROUP.keys()
    for name, tensor in GROUP.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor), name


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns what was gathered, by its number, in order."""
    order: list[int] = []

    def whole(tensor: Tensor) -> Tensor:
        order.append(int(tensor))
        return tensor

    monkeypatch.setattr(tensor_file, "whole", whole)
    return order


GROUPS = {"one": {"y": torch.tensor(2), "x": torch.tensor(1)}, "two": {"z": torch.tensor(3)}}


def test_what_nobody_takes_is_gathered_too(gathered: list[int]) -> None:
    with tensor_file.gathering(GROUPS):
        pass
    assert gathered == [1, 2, 3]
    with pytest.raises(OSError), tensor_file.gathering(GROUPS) as found:
        next(found)
        raise OSError
    assert gathered == [1, 2, 3] * 2


@pytest.mark.parametrize("fails", ["folder", "first file", "nothing"])
def test_a_checkpoint_that_cannot_be_written_leaves_no_rank_waiting(
    tmp_path: Path, gathered: list[int], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    folder = tmp_path / "checkpoints"
    if fails == "folder":
        folder.write_text("a file is in its place")
    if fails == "first file":
        full = OSError(28, "No space left on device")
        monkeypatch.setattr(durable, "put", mock.Mock(side_effect=full))
    expected = (
        contextlib.nullcontext()
        if fails == "nothing"
        else pytest.raises(checkpoint.CheckpointError)
    )
    with expected:
        checkpoint.save(folder, step_version=1, tensors=GROUPS, state={}, keep=1)
    assert gathered == [1, 2, 3]
