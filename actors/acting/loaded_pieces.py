"""Loads version after version of weights; of each what the one before had otherwise.

Of a population few policies train in each version. Of other networks everything changes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.common_chunks import changed_pieces
from headrace.learner.weights import Buffer, FlatWeights, WeightsError, digest, is_finite

Pieces: TypeAlias = Sequence[tuple[int, Buffer]]  # where in the buffer, and what


class LoadedPieces:
    """Loads weights into one module, which nobody else may change meanwhile."""

    def __init__(self, model: nn.Module) -> None:
        self._flat = FlatWeights(model)
        self._held: Blob | None = None  # as it was announced, without its chunks
        self._on_cpu = self._flat.buffer.device.type == "cpu"

    def load(self, blob: Blob) -> str:
        """Loads all of it, or raises WeightsError and loads nothing; returns the digest of what the
        module holds now."""
        before, self._held = self._held, None  # after an error the buffer is neither
        known = before.announce if before is not None and self._on_cpu else None
        pieces = changed_pieces(blob, known)
        if len(pieces) == len(blob.parts):
            self._flat.load(blob.parts)
            digest_held = self._flat.digest()
        else:
            digest_held = self._load(pieces)
        self._held = Blob(blob.announce, ())
        return digest_held

    @torch.no_grad()
    def _load(self, pieces: Pieces) -> str:
        buffer = self._flat.buffer.numpy()
        for at, piece in pieces:
            buffer[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        parts = list(self._parts(pieces))
        if not all(is_finite(view) for _, view in parts):
            raise WeightsError("a chunk of the weights holds a number that is not finite")
        for tensor, view in parts:
            tensor.copy_(view)
        for tensor, view in parts:  # what is there now, and not what should be
            view.copy_(tensor)
        return digest(buffer.data)

    def _parts(self, pieces: Pieces) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the rows of the module's tensors of which some byte lies in the pieces, and the
        same in the buffer."""
        for (tensor, view), entry in zip(self._flat.pairs, self._flat.layout, strict=True):
            row = entry.nbytes // entry.shape[0] if entry.shape and entry.nbytes else 0
            for at, piece in pieces:
                lo = max(0, at - entry.offset)
                hi = min(entry.nbytes, at + len(piece) - entry.offset)
                if lo < hi:
                    rows = slice(lo // row, -(-hi // row)) if row else ...
                    yield tensor[rows], view[rows]
