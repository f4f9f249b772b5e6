"""Every fuzz target by name, and the inputs that are kept for each.

corpus/NAME.msgpack is a list of inputs: what a long search found that takes another way through
the code. What once broke a promise has a test of its own in test_once_deadly.py.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.fuzz import broker_side, checkpoints, decoders, states, tensors

CORPUS = Path(__file__).parent / "corpus"

TARGETS: dict[str, Callable[[bytes], None]] = {
    "decode": decoders.decode,
    "decode_raw": decoders.decode_raw,
    "introduce": decoders.introduce,
    "unpack": decoders.unpack,
    "shared_run": decoders.shared_run,
    "spoilt_run": decoders.spoilt_run,
    "endpoint": decoders.endpoint,
    "fetch": states.fetch,
    "inbox": states.inbox,
    "outbox": states.outbox,
    "pieces": states.pieces,
    "bulk": states.bulk,
    "broker": broker_side.broker,
    "unroll": tensors.unroll,
    "weights": tensors.weights,
    "recording": tensors.recording,
    "checkpoint": checkpoints.damaged,
    "manifest": checkpoints.manifest,
    "sealed": checkpoints.sealed,
    "tensors": checkpoints.tensors,
    "state": checkpoints.state,
}


def kept(name: str) -> list[bytes]:
    path = CORPUS / f"{name}.msgpack"
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes]) if path.exists() else []


def keep(name: str, inputs: list[bytes]) -> None:
    CORPUS.mkdir(exist_ok=True)
    body = msgspec.msgpack.encode(sorted(set(inputs), key=lambda data: (len(data), data)))
    (CORPUS / f"{name}.msgpack").write_bytes(body)
