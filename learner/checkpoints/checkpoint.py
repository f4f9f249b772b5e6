"""Checkpoints: the learner's whole state on disk, complete and verified.

    folder/000000001234/        the version, so that names sort by age
        model.safetensors ...   one per group of tensors
        state.msgpack           everything that is not a tensor
        manifest.json           size and xxh3-128 of each of them, and of itself

A checkpoint is written under another name, synced and renamed, so its name says that it was
finished; the hashes say that nothing has changed since.
"""

import contextlib
import itertools
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import msgspec
import safetensors.torch
import xxhash
from torch import Tensor

from headrace.broker import durable
from headrace.broker.errors import UserError
from headrace.learner.checkpoints import manifest, tensor_file
from headrace.learner.checkpoints.manifest import MANIFEST, STATE, STEM, TENSORS, DamageError

_log = logging.getLogger(__name__)

# `.replaced` is the older of two checkpoints of one version; it is seen only if the process died
# between setting it aside and putting the new one in its place.
_FINISHED = re.compile(r"(\d{12})(\.replaced)?")
_HALF = re.compile(r"\d{12}\.(tmp|gone)")

TensorGroups = dict[str, dict[str, Tensor]]
T = TypeVar("T")


class CheckpointError(UserError):
    """Says in one line which checkpoint could not be written, or cannot be trusted, and why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Holds what `save` was given, read back."""

    version: int
    tensors: TensorGroups  # on the CPU, mapped
    state: dict[str, Any]
    path: Path

    def entry(self, kind: type[T], *names: str) -> T:
        """Returns what the state holds there; raises CheckpointError if it is not of this kind."""
        held: Any = self.state
        try:
            for name in names:
                held = held[name]
            return msgspec.convert(held, kind)
        except (KeyError, TypeError, IndexError, msgspec.ValidationError) as error:
            raise self.damaged(f"{STATE}: {'.'.join(names)}: {error!r}") from error

    def damaged(self, why: object) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.path} is damaged: {why}")


def save(
    folder: Path,
    *,
    step_version: int,
    tensors: TensorGroups,
    state: dict[str, Any],
    keep: int | None,
    keep_every: int = 0,
) -> Path:
    """Writes `folder/<version>/` and returns it once it would survive a power cut.

    Only then are older checkpoints beyond `keep` removed, save the first of every `keep_every`
    versions; None removes none. When the disk fails, CheckpointError is raised and the older ones
    are still there.
    """
    packed = _packed(tensors, state)
    final = folder / f"{step_version:012d}"
    temp, aside = folder / f"{final.name}.tmp", folder / f"{final.name}.replaced"
    try:
        with tensor_file.gathering(tensors) as found:
            _make(folder)
            for leftover in folder.iterdir():
                if _HALF.fullmatch(leftover.name):
                    shutil.rmtree(leftover)
            _write(temp, step_version, tensors, found, packed)
        if final.exists():
            if aside.exists():
                remove(aside)
            final.rename(aside)
        durable.commit(temp, final)
    except OSError as error:
        shutil.rmtree(temp, ignore_errors=True)
        # A full disk may refuse this too; then `aside` still counts as finished.
        with contextlib.suppress(OSError):
            if aside.exists() and not final.exists():
                aside.rename(final)
        raise CheckpointError(f"checkpoint {final} could not be written: {error}") from error
    _prune(folder, newest=step_version, keep=keep, every=keep_every)
    return final


def load_latest(
    folder: Path,
    usable: Callable[[Checkpoint], object] = lambda _: None,
    score: Callable[[Checkpoint], float] | None = None,
) -> Checkpoint | None:
    """Returns the newest checkpoint that is whole, or the one of them with the highest score; None
    when there is none at all.

    A damaged one is logged and passed over; `usable` raises CheckpointError for one that is. If all
    are damaged it raises CheckpointError: a start from nothing is then a person's decision.
    """
    damaged: list[str] = []
    best: Checkpoint | None = None
    try:
        there = _finished(folder)
    except OSError as error:
        raise CheckpointError(f"the checkpoints in {folder} cannot be listed: {error}") from error
    for path in there:
        try:
            found = load(path)
            usable(found)
        except CheckpointError as error:
            _log.warning("%s", error)
            damaged.append(path.name)
            continue
        if score is None:
            return found
        if best is None or score(found) > score(best):
            best = found
    if damaged and best is None:
        raise CheckpointError(
            f"no checkpoint in {folder} can be used, all are damaged: {', '.join(damaged)}; "
            f"move the folder away to start anew"
        )
    return best


def set_aside(folder: Path, *, before: Path) -> None:
    """Renames the damaged ones that `load_latest` passed over before it came to that one.

    A damaged one would count as one of the newest, and push out a good one. It stays for a person.
    """
    try:
        passed_over = itertools.takewhile(lambda path: path != before, _finished(folder))
        for path in list(passed_over):
            to = folder / f"{path.name}.damaged"
            while to.exists():
                to = to.with_name(f"{to.name}+")
            path.rename(to)
            _log.warning("damaged checkpoint %s is now %s", path.name, to)
    except OSError as error:
        _log.warning("the damaged checkpoints in %s stay where they are: %s", folder, error)


def load(path: Path) -> Checkpoint:
    """Loads one checkpoint and verifies every byte; CheckpointError if any is not as written.

    The tensors are the files themselves, mapped: what is not touched takes no memory, and the ranks
    of a machine share it. A mapped file is on the disk, whoever removes it, until they are gone.
    """
    try:
        version, files = manifest.read(path)
        for name, entry in files.items():
            manifest.verify(path / name, entry)
        state = _inside(path / STATE, lambda file: _unpack(file.read_bytes()))
        groups = {
            name.removesuffix(TENSORS): _inside(path / name, safetensors.torch.load_file)
            for name in files
            if name != STATE
        }
    except (OSError, DamageError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return Checkpoint(version, groups, state, path)


def _inside(file: Path, read: Callable[[Path], T]) -> T:
    """Decodes a file: even with the right hash it may not be ours, since hashes are no secret."""
    try:
        return read(file)
    except Exception as error:  # what the libraries raise is not all written down
        raise DamageError(f"{file.name} cannot be read: {error!r:.200}") from error


def _packed(tensors: TensorGroups, state: dict[str, Any]) -> bytes:
    """Returns the state as its file; ValueError for what cannot be saved."""
    for stem in tensors:
        if not STEM.fullmatch(stem):
            raise ValueError(f'"{stem}" cannot name a file of tensors: use a-z, 0-9 and _')
    # strict_types: a tuple would silently come back as a list.
    packed: bytes = msgpack.packb(state, strict_types=True)
    # State that can be packed but not unpacked must fail now, not at the restart.
    _unpack(packed)
    return packed


def _unpack(blob: bytes) -> dict[str, Any]:
    return msgspec.convert(msgpack.unpackb(blob), dict[str, Any])


def _make(folder: Path) -> None:
    """Makes the folder and every missing one above it, so that they survive a power cut."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        durable.sync(folder.parent)


def _write(
    folder: Path, version: int, tensors: TensorGroups, found: Iterator[Tensor], state: bytes
) -> None:
    folder.mkdir()
    files = {
        stem + TENSORS: _put(folder / (stem + TENSORS), tensor_file.pieces(group, found))
        for stem, group in tensors.items()
    }
    files[STATE] = _put(folder / STATE, iter([state]))
    durable.put(folder / MANIFEST, [manifest.sealed(version, files)])


def _put(path: Path, pieces: Iterator[bytes | memoryview]) -> dict[str, Any]:
    """Writes a file; returns what the manifest says of it."""
    size, digest = 0, xxhash.xxh3_128()

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal size
        for piece in pieces:
            size += len(piece)
            digest.update(piece)
            yield piece

    durable.put(path, counted())
    return {"size": size, "xxh3_128": digest.hexdigest()}


def _finished(folder: Path) -> list[Path]:
    """Lists checkpoints, newest first; of one version the one in its final place first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _FINISHED.fullmatch(path.name)]
    return sorted(found, key=lambda path: (-int(path.name[:12]), len(path.name)))


def remove(path: Path) -> None:
    """Removes a checkpoint; if we are killed in the middle, nothing is left that looks finished."""
    going = path.with_name(f"{path.name[:12]}.gone")
    if going.exists():
        shutil.rmtree(going)
    path.rename(going)
    shutil.rmtree(going)


def _prune(folder: Path, *, newest: int, keep: int | None, every: int) -> None:
    """Leaves `newest`, the keep - 1 before it or all, and the first of every so many versions;
    those above `newest` are not touched."""
    try:
        there = _finished(folder)
    except OSError as error:
        _log.warning("old checkpoints in %s could not be listed: %s", folder, error)
        return
    before = [path for path in there if int(path.name[:12]) < newest]
    firsts = {int(path.name[:12]) // every: path for path in before if every}  # the oldest is last
    aside = {path for path in there if path.suffix}
    older = before[keep - 1 :] if keep is not None else []
    for path in {*older} - {*firsts.values()} | aside:
        try:
            remove(path)
        except OSError as error:
            _log.warning("old checkpoint %s could not be removed: %s", path, error)
