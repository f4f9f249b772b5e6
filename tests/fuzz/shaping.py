"""Messages whose types are right and whose values are not: one for every few bytes of a fuzzer.

The header is packed from plain values, so that what no record of ours could hold gets there too.
"""

import typing
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any

import msgspec

from headrace.broker.protocol import messages
from headrace.broker.protocol.hello_payload import HelloPayload
from tests.fuzz.framing import framed
from tests.fuzz.reading import Reader

# The edges of every width there is, and the small numbers that honest peers use.
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    63,
    64,
    65,
    4095,
    4096,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**36,
    2**36 + 1,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -2,
    -(2**31),
    -(2**63),
)
FLOATS = (0.0, 1.0, -1.0, 0.2, 1e-308, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "actor",
    "learner",
    "watcher",
    "evaluator",
    "small",
    "s",
    "x" * 200,
    "é" * 200,
    "\N{GRINNING FACE}" * 200,
    "a\nb",
    "\0",
    "%s{}",
    "t" * 3900,
    "t" * 4070,
    "no such role",
)
UNROLL_BYTES = 2000  # of an honest one, at most
# What a HELLO may call its run.
SHARED: tuple[Any, ...] = (
    {},
    {"run": 5},
    {"run": {"name": "small"}},
    {"env": {"id": [[[[]]]]}},
    {"env": []},
    {"": {"": ""}},
    {"env": {"kwargs": {5: {b"x": None}}}},
    {5: {}},
    {"run": {"name": "t" * 5000}},
)

Make = Callable[[Reader], Any]


def number(reader: Reader) -> int:
    """Mostly small: states that hang together are reached only by numbers that agree."""
    byte = reader.byte()
    return byte % 8 if byte < 208 else NUMBERS[byte % len(NUMBERS)]


def maker(kind: Any) -> Make:
    """What gives values of a type, from bytes."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return maker(inner[0])
    if origin in (typing.Union, UnionType):
        some = [maker(one) for one in inner if one is not NoneType]
        return lambda reader: None if reader.byte() % 2 else some[0](reader)
    if origin is tuple and inner[-1] is Ellipsis:
        one = maker(inner[0])
        return lambda reader: [one(reader) for _ in range(_length(reader))]
    if origin is tuple:
        each = [maker(part) for part in inner]
        return lambda reader: [part(reader) for part in each]
    if origin is dict:
        return lambda reader: {
            reader.pick(TEXTS): reader.pick(FLOATS) for _ in range(reader.byte() % 4)
        }
    plain: dict[Any, Make] = {
        int: number,
        bool: lambda reader: bool(reader.byte() % 2),
        float: lambda reader: reader.pick(FLOATS),
        str: lambda reader: reader.pick(TEXTS),
        bytes: lambda reader: bytes(reader.pick((0, 1, 8, 16, 800))),
        messages.Outcome: lambda reader: reader.byte() % 8,
    }
    return plain[kind]


def _length(reader: Reader) -> int:
    byte = reader.byte()
    return byte % 4 if byte < 240 else (64, 65, 129, 900)[byte % 4]


def _fields(kind: type[msgspec.Struct], *, without: str = "") -> dict[str, Make]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: maker(hints[name]) for name in kind.__struct_fields__ if name != without}


_MESSAGES = [_fields(kind) for kind in messages.TYPES]
# Any plain data may stand in `shared`: decoders.py sees to that.
_INTRODUCTION = _fields(HelloPayload, without="shared")
_HELLO, _UNROLL, _DONE = (
    messages.TYPES.index(t) for t in (messages.Hello, messages.Unroll, messages.Done)
)
# A HELLO that is refused leads nowhere, so most of them say what honest ones say.
_LIKELY: dict[str, tuple[Any, ...]] = {
    "role": ("actor", "learner", "actor", "learner", "watcher", "evaluator"),
    "run": ("", "small"),
    "spaces": ("s", "s", "s", ""),
    "rank": (0, 0, 0, 1),
    "world": (1, 1, 2),
}


def message(reader: Reader, *, inc: int = 1) -> list[bytes]:
    """The frames of one message, by a peer that mostly calls itself by its own incarnation."""
    first = reader.byte()
    tag = (
        first % len(messages.TYPES) if first < 168 else (_HELLO, _UNROLL, _UNROLL, _DONE)[first % 4]
    )
    fields: list[Any] = []
    for name, make in _MESSAGES[tag].items():
        honest = reader.byte() < 224 if name in _LIKELY or name == "inc" else False
        if honest:
            fields.append(inc if name == "inc" else reader.pick(_LIKELY[name]))
        else:
            fields.append(make(reader))
    header = msgspec.msgpack.encode(fields)
    body = b""
    if tag == _HELLO and reader.byte() < 240:
        body = introduction(reader)
    elif tag == _UNROLL and reader.byte() < 240:
        body = bytes(8)
    elif messages.TYPES[tag] is messages.Open and reader.byte() < 240:
        head = _opened(reader, fields[-1], inc)
        return [*framed(header, tag, buffers=len(head)), *head]
    elif reader.byte() % 16 == 0 or messages.TYPES[tag] in (messages.Chunk, messages.Piece):
        body = reader.take(reader.byte() % 8)
    return [*framed(header, tag, buffers=int(bool(body))), *([body] if body else [])]


def _opened(reader: Reader, sizes: Sequence[int], inc: int) -> list[bytes]:
    """The first frames of a message whose buffers have these sizes: mostly an honest unroll's."""
    if reader.byte() < 32:
        return [reader.take(16), reader.take(reader.byte() % 40)]
    seq = reader.byte() % 4
    said = [inc, reader.byte() % 3, seq, min(seq, reader.byte() % 4), 0, 0, 8, 1]
    return framed(msgspec.msgpack.encode(said), _UNROLL, buffers=len(sizes))


def introduction(reader: Reader) -> bytes:
    said = {name: make(reader) for name, make in _INTRODUCTION.items()}
    if reader.byte() < 240:
        said["unroll_bytes"] = UNROLL_BYTES
    if reader.byte() < 32:
        said["shared"] = reader.pick(SHARED)
    if reader.byte() < 200:
        said["streams"] = [_stream(reader) for _ in range(reader.byte() % 3)]
    return msgspec.msgpack.encode(said)


def _stream(reader: Reader) -> list[Any]:
    """In order, as decode demands, wherever it begins."""
    floor = min(abs(number(reader)), 2**53 - 100)
    following = floor + reader.byte() % 8
    lo = floor + reader.byte() % 4
    unacked = [[lo, following]] if lo < following else []
    return [reader.byte() % 3, floor, following, following + reader.byte() % 2, unacked]
