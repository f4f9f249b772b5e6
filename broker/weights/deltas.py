"""Chunks of weights as what changed since an earlier version, for slow lines. Pure.

An optimiser step moves most weights a little: of the four bytes of a float32 the first hardly
changes and the second seldom. So the two versions are combined by XOR, which leaves zeros where
they agree, the bytes of all numbers are put together by their place, and deflate takes out the
zeros. The hash of a chunk is that of the chunk itself, so changes of other bytes are noticed.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np

from headrace.broker.protocol.messages import Buffer

_NUMBER_BYTES: Final = 4
_CACHED_BYTES: Final = 16 << 20


class NotPacked(ValueError):  # noqa: N818 - reads as what it says
    """Says that bytes are not what `pack` made of two chunks of this size."""


def pack(chunk: Buffer, base: Buffer) -> bytes:
    """Returns what changed from `base` to a chunk of the same size."""
    changed = np.bitwise_xor(_bytes(chunk), _bytes(base))
    whole = len(changed) - len(changed) % _NUMBER_BYTES
    by_place = changed[:whole].reshape(-1, _NUMBER_BYTES).T.tobytes()
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS, strategy=zlib.Z_RLE)
    return packer.compress(by_place + changed[whole:].tobytes()) + packer.flush()


def unpack(packed: Buffer, base: Buffer) -> bytes:
    """Returns the chunk that `pack` was given; raises NotPacked if it cannot be one of this
    base."""
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = unpacker.decompress(packed, len(base) + 1)
    except zlib.error as error:
        raise NotPacked(str(error)) from error
    if len(data) != len(base) or not unpacker.eof or unpacker.unused_data:
        raise NotPacked(f"{len(data)} bytes, not {len(base)}")
    placed = np.frombuffer(data, np.uint8)
    whole = len(placed) - len(placed) % _NUMBER_BYTES
    changed = placed.copy()
    changed[:whole] = placed[:whole].reshape(_NUMBER_BYTES, -1).T.ravel()
    return np.bitwise_xor(changed, _bytes(base)).tobytes()


class PackedChunks:
    """Keeps the chunks that were packed last: all peers that have the same version get the same."""

    def __init__(self) -> None:
        # By digests of the two versions, and index of the chunk; least recently used first.
        self._packed: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self.nbytes = 0  # of all of them

    def get(self, key: tuple[str, str, int], make: Callable[[], bytes]) -> bytes:
        """Returns the packed chunk of this name, made when it is not here."""
        packed = self._packed.get(key)
        if packed is None:
            packed = self._packed[key] = make()
            self.nbytes += len(packed)
        self._packed.move_to_end(key)
        while self.nbytes > _CACHED_BYTES and len(self._packed) > 1:
            self.nbytes -= len(self._packed.popitem(last=False)[1])
        return packed


def _bytes(buffer: Buffer) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(buffer, np.uint8)
