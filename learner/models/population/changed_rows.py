"""Dumps a population's weights in chunks: one in which no policy has trained is that of the version
before, the same memory."""

from collections.abc import Sequence

import torch
from torch import nn

from headrace.broker.weights.blobs import chunk_size
from headrace.learner.models.population.population import ROWS, Population
from headrace.learner.weights import FlatWeights, layout, view_of


class ChangedRows:
    """Dumps a population again and again. Rows have changed where its optimiser says so."""

    def __init__(self, population: Population) -> None:
        self._touched = population.touched
        self._tensors = population.sent()
        *self._small, self._last = layout(population)
        assert self._last.name == ROWS
        self._nbytes = self._last.offset + self._last.nbytes
        self._row = self._last.nbytes // len(self._touched)  # bytes of it
        self._chunk = chunk_size(self._nbytes)
        self._chunks: tuple[bytes, ...] = ()  # of the version before

    @torch.no_grad()
    def dump(self) -> tuple[bytes, ...]:
        """Returns what the population holds now, in chunks."""
        begin = torch.empty(self._last.offset, dtype=torch.uint8)
        for entry in self._small:
            view_of(begin, entry).copy_(self._tensors[entry.name])
        small = begin.numpy().tobytes()
        changed = self._changed(self._touched.nonzero().squeeze(1).tolist())
        self._touched.zero_()
        self._chunks = tuple(
            self._read(small, at, min(at + self._chunk, self._nbytes))
            if index in changed
            else self._chunks[index]
            for index, at in enumerate(range(0, self._nbytes, self._chunk))
        )
        return self._chunks

    def _changed(self, touched: Sequence[int]) -> set[int]:
        """Returns the chunks in which something may differ from the version before."""
        if not self._chunks:
            return {*range(-(-self._nbytes // self._chunk))}
        changed = {*range(-(-self._last.offset // self._chunk))}
        for first in (self._last.offset + at * self._row for at in touched):
            last = first + self._row - 1
            changed.update(range(first // self._chunk, last // self._chunk + 1))
        return changed

    def _read(self, small: bytes, lo: int, hi: int) -> bytes:
        """Returns the bytes from `lo` on, of what is small and of the rows."""
        lo_row, hi_row = max(0, lo - len(small)), max(0, hi - len(small))
        first = lo_row // self._row
        rows = self._tensors[ROWS][first : -(-hi_row // self._row)].to(self._last.dtype)
        read = rows.cpu().view(torch.uint8).numpy().tobytes()
        return small[lo:hi] + read[lo_row - first * self._row : hi_row - first * self._row]


def dump_of(model: nn.Module) -> FlatWeights | ChangedRows:
    """Returns what dumps this model again and again. From a GPU one large transfer is quicker than
    many small ones."""
    if isinstance(model, Population) and model.weights.device.type == "cpu":
        return ChangedRows(model)
    return FlatWeights(model)
