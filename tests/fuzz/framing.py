"""Frames put together by hand, as docs/protocol.md draws them, whatever the header holds."""

import struct

import xxhash

from headrace.broker.protocol import releases


def framed(header: bytes, tag: int, *, buffers: int = 0) -> list[bytes]:
    """Prefix and header; everything that can be checked before the fields is right."""
    check = xxhash.xxh32_intdigest(header, seed=tag << 16 | buffers)
    return [
        struct.pack(
            "!2sBBHHII", b"HR", releases.PROTOCOL, tag & 255, buffers & 65535, 0, len(header), check
        ),
        header,
    ]
