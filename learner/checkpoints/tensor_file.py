"""Tensors as the bytes of a safetensors file, one after another: of what is spread over the ranks
one tensor at a time is whole, and no second copy is made of the others.

    size of the header (8 bytes) | header: name -> dtype, shape, begin and end | tensors

Wide elements first, then by name, so that each is aligned without padding.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from headrace.learner.sharding.parts import whole

_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNED: Final = 8  # bytes that the header is a multiple of


@contextlib.contextmanager
def gathering(groups: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Iterator[Tensor]]:
    """Yields whole tensors, in the order of their files. In the end it gathers those that nobody
    has taken, because the other ranks do."""
    found = (whole(group[name]) for group in groups.values() for name in _ordered(group))
    try:
        yield found
    finally:
        for _ in found:
            pass


def pieces(group: Mapping[str, Tensor], found: Iterator[Tensor]) -> Iterator[bytes | memoryview]:
    """Yields the file of this group, whose tensors are taken from `found`."""
    header: dict[str, object] = {}
    offset = 0
    for name in (names := _ordered(group)):
        tensor = group[name]
        end = offset + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)
    yield len(text).to_bytes(8, "little")
    yield text
    for _ in names:
        flat = next(found).detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def _ordered(group: Mapping[str, Tensor]) -> list[str]:
    return sorted(group, key=lambda name: (-group[name].element_size(), name))
