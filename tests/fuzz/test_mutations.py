"""Honest messages with other bytes: decode gives a message or a WireError, and nothing else."""

import random
import time

from headrace.broker.protocol import messages, releases
from tests.broker.protocol.test_messages import MESSAGES
from tests.fuzz.decoders import kept
from tests.fuzz.framing import framed
from tests.system.harness.figures import pick, say

_HONEST = [
    [bytes(frame) for frame in messages.encode(message, b"body")]  # type: ignore[arg-type]
    for message in MESSAGES
]


def mutated(rng: random.Random, body: bytes) -> bytes:
    """One to four changes of the kinds that wires, disks and attackers make."""
    spoilt = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(5):
            case 0:
                spoilt[at : at + 1] = bytes((rng.randrange(256),))
            case 1 if at < len(spoilt):
                spoilt[at] ^= 1 << rng.randrange(8)
            case 2:
                spoilt[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                del spoilt[at : at + rng.randint(1, 9)]
            case _:
                del spoilt[at:]
    return bytes(spoilt)


def test_byte_mutations() -> None:
    """One frame of an honest message is spoilt. Half the headers get the hash that they then need,
    so that their fields are looked at."""
    rng, taken, refused = random.Random(21), 0, 0
    count, began = pick(30_000, 10_000_000), time.monotonic()
    for number in range(count):
        tag = number % len(_HONEST)
        prefix, header, body = _HONEST[tag]
        if number % 2:
            frames = [*framed(mutated(rng, header), tag, buffers=1), body]
        else:
            frames = [mutated(rng, prefix), header, body]
        try:
            message, buffers = messages.decode(frames)
        except messages.WireError:
            refused += 1
            continue
        assert type(message) in messages.TYPES and len(buffers) == 1
        kept(message)
        taken += 1
    assert taken + refused == count and taken > count // 100 < refused
    say(
        "byte mutations",
        faults=count,
        taken=taken,
        refused=refused,
        seconds=time.monotonic() - began,
    )


def test_every_single_bit() -> None:
    """Of each honest message, in prefix and header: no flipped bit passes unnoticed."""
    for prefix, header, body in _HONEST:
        whole = prefix + header[:300]
        for bit in range(len(whole) * 8):
            spoilt = bytearray(prefix + header)
            spoilt[bit // 8] ^= 1 << bit % 8
            try:
                messages.decode([spoilt[:16], spoilt[16:], body])
            except messages.WireError:
                continue
            # Else it is the number of a protocol that is spoken too: the message is the same.
            assert spoilt[2] == releases.OLDEST, f"bit {bit} of {prefix!r}"
