"""Targets: a checkpoint's files."""

import contextlib
import json
import tempfile
from pathlib import Path

import xxhash

from headrace.learner import train_state
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.manifest import sealed as sealed_manifest
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Leaf, Spaces, discrete
from tests.fuzz.reading import Reader

_FOLDER = tempfile.TemporaryDirectory(prefix="headrace-fuzz-")
_MODEL = build(ModelConfig(hidden=(1,)), Spaces((Leaf("obs", "<f4", (1,)),), discrete(2)), seed=0)
_SAVED = checkpoint.save(
    Path(_FOLDER.name),
    step_version=7,
    tensors={"model": dict(_MODEL.state_dict())},
    state={"steps": 5},
    keep=1,
)
_FILES = {path.name: path.read_bytes() for path in sorted(_SAVED.iterdir())}


def damaged(data: bytes) -> None:
    """One file with other bytes: CheckpointError, unless nothing was changed."""
    reader = Reader(data)
    name = reader.pick(sorted(_FILES))
    right = _FILES[name]
    body = bytearray(right)
    for _ in range(reader.byte() % 4):
        place = (reader.byte() * 256 + reader.byte()) % (len(body) + 1)
        match reader.byte() % 3:
            case 0:
                body[place : place + 1] = reader.take(1)
            case 1:
                del body[place:]
            case _:
                body[place:place] = reader.take(reader.byte() % 16)
    (_SAVED / name).write_bytes(body)
    try:
        with contextlib.suppress(checkpoint.CheckpointError):
            checkpoint.load(_SAVED)
            assert body == right
    finally:
        (_SAVED / name).write_bytes(right)


def manifest(data: bytes) -> None:
    """Any bytes as a manifest."""
    assert not _loads(data) or data == _FILES["manifest.json"]


def _loads(data: bytes) -> bool:
    (_SAVED / "manifest.json").write_bytes(data)
    try:
        checkpoint.load(_SAVED)
    except checkpoint.CheckpointError:
        return False
    finally:
        (_SAVED / "manifest.json").write_bytes(_FILES["manifest.json"])
    return True


def sealed(data: bytes) -> None:
    """A manifest whose seal is right whatever it says: of fewer files, it is as good."""
    try:
        facts = json.loads(data)
        raw = sealed_manifest(facts["version"], facts["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    _loads(raw)


def tensors(data: bytes) -> None:
    """Any bytes as the file of tensors, with their right hash in a sealed manifest."""
    _forged("model.safetensors", data)


def state(data: bytes) -> None:
    """The same as the file of all that is not a tensor."""
    _forged("state.msgpack", data)


def _forged(name: str, data: bytes) -> None:
    facts = json.loads(_FILES["manifest.json"])
    facts["files"][name] = {"size": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    (_SAVED / name).write_bytes(data)
    try:
        (_SAVED / "manifest.json").write_bytes(sealed_manifest(7, facts["files"]))
        with contextlib.suppress(checkpoint.CheckpointError):
            found = checkpoint.load(_SAVED)
            train_state.check(found, _MODEL, target=False)
    finally:
        for own, body in _FILES.items():
            (_SAVED / own).write_bytes(body)
