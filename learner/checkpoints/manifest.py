"""The manifest of a checkpoint: which files it has, and how each can be told to be as written."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import xxhash

SCHEMA = 1
STEM = re.compile(r"[a-z0-9_]+")
TENSORS = ".safetensors"
STATE = "state.msgpack"
MANIFEST = "manifest.json"
_PIECE = 1 << 20  # bytes that are read at a time


class DamageError(Exception):
    """Says why a file is not what was written."""


def sealed(version: int, files: dict[str, Any]) -> bytes:
    """Encodes these facts in the only way, so that a reader can compare it byte for byte."""
    facts = {"schema": SCHEMA, "version": version, "files": files}
    seal = xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
    return json.dumps({**facts, "xxh3_128": seal}, indent=1, sort_keys=True).encode()


def read(path: Path) -> tuple[int, dict[str, Any]]:
    """Returns the version of the checkpoint in this folder, and its files; DamageError if the
    manifest cannot be trusted."""
    raw = (path / MANIFEST).read_bytes()
    try:
        facts = json.loads(raw)
        schema = facts["schema"]
        if schema != SCHEMA:
            raise DamageError(f"{MANIFEST} has schema {schema}, this program reads {SCHEMA}")
        version = msgspec.convert(facts["version"], int)
        files = msgspec.convert(facts["files"], dict[str, dict[str, int | str]])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamageError(f"{MANIFEST} cannot be read: {error!r}") from error
    if raw != sealed(version, files):
        raise DamageError(f"{MANIFEST} is not what was written")
    if path.name[:12] != f"{version:012d}":
        raise DamageError(f"{MANIFEST} is that of version {version}")
    for name in files:
        if name != STATE and not STEM.fullmatch(name.removesuffix(TENSORS)):
            raise DamageError(f"{MANIFEST} names an unknown file {name!r}")
    if STATE not in files:
        raise DamageError(f"{MANIFEST} names no {STATE}")
    return version, files


def verify(file: Path, entry: dict[str, Any]) -> None:
    """Raises DamageError unless a file is what the manifest says; it is never in memory as a
    whole."""
    size, digest = 0, xxhash.xxh3_128()
    with file.open("rb", buffering=0) as opened:
        while piece := opened.read(_PIECE):
            size += len(piece)
            digest.update(piece)
    if size != entry.get("size"):
        raise DamageError(f"{file.name} has {size} bytes of {entry.get('size')}")
    if digest.hexdigest() != entry.get("xxh3_128"):
        raise DamageError(f"{file.name} has the right size and the wrong content")
