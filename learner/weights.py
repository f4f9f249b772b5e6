"""A module's state as one flat buffer, and back.

    | float64, int64 ... | float32 ... | float16, bfloat16 ... | uint8, bool ... |

Wide elements first, then by dtype and name: every tensor is aligned without padding, the order is
the same on every machine, and each dtype is one run of bytes. Parameters travel as the model's
`wire`, rounded to bfloat16 if that says so; statistics, which are no parameters, as they are.
"""

import math
from itertools import groupby
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from headrace.broker.errors import UserError

Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Buffer | tuple[Buffer, ...]  # all bytes, or the chunks in which they travel
_LARGE = 1 << 20  # bytes, from which a second copy costs more than looking the tensors up


class WeightsError(UserError, ValueError):
    """Says that these weights are not for this module, or not fit for use."""


class Entry(NamedTuple):
    """Describes where one tensor lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


Layout = tuple[Entry, ...]


def layout(model: nn.Module) -> Layout:
    """Returns the entries of what the model sends, in the order of the buffer."""
    wire, parameters = getattr(model, "wire", torch.float32), dict(model.named_parameters())
    sent: dict[str, Tensor] = getattr(model, "sent", model.state_dict)()
    for name, tensor in sent.items():  # a parameter, or a part of one
        if tensor.dtype == torch.float32 and {name, name.rpartition(".")[0]} & parameters.keys():
            sent[name] = torch.empty(tensor.shape, dtype=wire, device="meta")
    entries: list[Entry] = []
    offset = 0
    for name, tensor in sorted(sent.items(), key=_order):
        entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), offset, tensor.nbytes))
        offset += tensor.nbytes
    return tuple(entries)


def layout_digest(model: nn.Module) -> str:
    """Returns a digest: equal for two modules exactly when one can load what the other dumps."""
    facts = [(entry.name, str(entry.dtype), entry.shape) for entry in layout(model)]
    return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(facts))


def digest(body: Buffer) -> str:
    return xxhash.xxh3_128_hexdigest(body)


class FlatWeights:
    """Dumps and loads one module again and again. Make it when that is on its device and has its
    final dtype: the tensors are looked up once, which for small models is most of the work."""

    def __init__(self, model: nn.Module) -> None:
        self.layout = layout(model)
        self.nbytes = sum(entry.nbytes for entry in self.layout)
        state: dict[str, Tensor] = getattr(model, "sent", model.state_dict)()
        devices = {tensor.device for tensor in state.values()} or {torch.device("cpu")}
        if len(devices) > 1:
            raise WeightsError(f"the module is spread over {sorted(map(str, devices))}")
        (device,) = devices
        # The buffer on the module's device, and the same bytes seen as the module's tensors.
        self.buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        self.pairs = [(state[entry.name], view_of(self.buffer, entry)) for entry in self.layout]
        self._floats = _float_runs(self.buffer, self.layout)
        # The buffer where numpy can reach it: the same one, unless the module is on a GPU.
        self._host = self.buffer
        if device.type != "cpu":
            self._host = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)

    @torch.no_grad()
    def gather(self) -> None:
        """Copies what the module holds into the buffer."""
        for tensor, view in self.pairs:
            view.copy_(tensor)

    @torch.no_grad()
    def dump(self) -> memoryview:
        """Returns a copy of what the module holds now; from a GPU it is one transfer."""
        if self._host is self.buffer and self.nbytes >= _LARGE:
            body = np.empty(self.nbytes, np.uint8)  # in large pages
            for (tensor, _), entry in zip(self.pairs, self.layout, strict=True):
                view_of(torch.from_numpy(body), entry).copy_(tensor)
            return body.data
        self.gather()
        if self._host is not self.buffer:
            self._host.copy_(self.buffer)
        return self._host.numpy().copy().data

    @torch.no_grad()
    def load(self, body: Body, *, check_finite: bool = True) -> None:
        """Copies `body` into the module in place, all of it, or raises WeightsError and none."""
        parts = body if isinstance(body, tuple) else (body,)
        size = sum(memoryview(part).nbytes for part in parts)
        if size != self.nbytes:
            raise WeightsError(
                f"these weights have {size} bytes, this module needs {self.nbytes} in "
                f"{len(self.layout)} tensors; both ends must run the same [model] section"
            )
        np.concatenate([np.frombuffer(one, np.uint8) for one in parts], out=self._host.numpy())
        if self._host is not self.buffer:
            self.buffer.copy_(self._host)
        if check_finite and not all(map(is_finite, self._floats)):
            raise WeightsError(f"{self._first_not_finite()} holds a number that is not finite")
        for tensor, view in self.pairs:
            tensor.copy_(view)

    def digest(self) -> str:
        """Returns the module's digest: after `load(body)` it must equal `digest(body)`."""
        return digest(self.dump())

    def _first_not_finite(self) -> str:
        pairs = zip(self.layout, self.pairs, strict=True)
        return next(entry.name for entry, (_, view) in pairs if not is_finite(view))


def is_finite(tensor: Tensor) -> bool:
    """Tells whether all of it is finite: by its norm, quickly, unless that overflows."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return math.isfinite(tensor.norm()) or bool(tensor.isfinite().all())


def _order(item: tuple[str, Tensor]) -> tuple[int, str, str]:
    name, tensor = item
    return -tensor.element_size(), str(tensor.dtype), name


def view_of(flat: Tensor, entry: Entry) -> Tensor:
    """Returns the entry's bytes in the buffer as its tensor."""
    piece = flat[entry.offset : entry.offset + entry.nbytes]
    return piece.view(entry.dtype).view(entry.shape)


def _float_runs(flat: Tensor, entries: Layout) -> list[Tensor]:
    """Returns every floating dtype's run of bytes as one tensor, so that one call checks it."""
    runs = []
    for dtype, group in groupby(entries, key=lambda entry: entry.dtype):
        if dtype.is_floating_point or dtype.is_complex:
            run = list(group)
            end = run[-1].offset + run[-1].nbytes
            runs.append(flat[run[0].offset : end].view(dtype))
    return runs
