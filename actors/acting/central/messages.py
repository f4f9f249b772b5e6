"""Defines what a sampler and the act process of its machine say to each other, by a local socket.

    Greeting, with the shared memory -->   <-- Taken, or Refused
    Ask -->                                <-- Answer

Both are of one release: the node started them.
"""

import socket
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headrace.actors.acting.central.slot import Layout
from headrace.learner.config import ModelConfig
from headrace.learner.spaces import Spaces

MOST_BYTES: Final = 1 << 18
SOCKET: Final = "act"  # its name, in the folder of the machine's weights


class Greeting(Struct, frozen=True, array_like=True, tag=True):
    """Says which network a sampler acts with, and where its weights lie."""

    shelf: Annotated[str, Meta(pattern=r"^\w[\w.-]*\Z")]  # a file beside the socket
    model: ModelConfig
    spaces: Spaces
    precision: str
    layout: Layout


class Taken(Struct, frozen=True, array_like=True, tag=True):
    """Says that the network is there."""


class Refused(Struct, frozen=True, array_like=True, tag=True):
    """Says why it will not be."""

    why: str


class Ask(Struct, frozen=True, array_like=True, tag=True):
    """Asks for the network's numbers of the first rows, by the weights of this digest: versions
    come a second time where a learner goes back to its checkpoint."""

    rows: Annotated[int, Meta(ge=1)]
    weights: str


class Answer(Struct, frozen=True, array_like=True, tag=True):
    """Says of how many rows the numbers are there; 0 = these weights are not here."""

    rows: int


FromSampler = Greeting | Ask
ToSampler = Taken | Refused | Answer
encode: Final = msgspec.msgpack.Encoder().encode
from_sampler: Final = msgspec.msgpack.Decoder[FromSampler](FromSampler)
to_sampler: Final = msgspec.msgpack.Decoder[ToSampler](ToSampler)


def new_socket() -> socket.socket:
    """Returns a socket that keeps messages apart and says when the other end is gone."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
