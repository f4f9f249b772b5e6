"""Saves the train loop's whole state as a checkpoint, checks and restores it; appends history."""

import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import Annotated, Any

import msgpack
import msgspec
import torch
from torch import Tensor, nn

from headrace.broker import durable
from headrace.learner.algorithms import optimiser_state
from headrace.learner.batches.policy_returns import TABLE
from headrace.learner.checkpoints import checkpoint, tensor_file
from headrace.learner.models.model import Model
from headrace.learner.models.population.population import FACTORS, Population
from headrace.learner.progress import Progress
from headrace.learner.sharding.parts import load
from headrace.learner.train_parts import TrainParts
from headrace.learner.weights import is_finite

log = logging.getLogger(__name__)


def save(p: TrainParts, optimiser: torch.optim.Optimizer) -> None:
    """Saves everything that a restart needs. All ranks take part: each knows what it trained."""
    with p.metrics.timed("checkpoint"):
        packed = p.ranks.gather(msgpack.packb(p.feed.windows()))
        groups, meta = _tensors(p, optimiser)
        if p.ranks.rank:
            with tensor_file.gathering(groups):  # with the first rank, one after another
                return
        windows = [window for of_rank in packed for window in msgpack.unpackb(of_rank)]
        _write(p, groups, meta, windows)
        _write_population(p)


def _tensors(
    p: TrainParts, optimiser: torch.optim.Optimizer
) -> tuple[checkpoint.TensorGroups, dict[str, Any]]:
    """Returns the tensors of a checkpoint, as they are, and the rest of the optimiser's state."""
    tensors, meta = optimiser_state.state_of(optimiser)
    groups = {"model": dict(p.model.state_dict()), "optimiser": tensors, "rng": rng_state()}
    if p.target is not None:
        groups["target"] = dict(p.target.state_dict())
    return groups, meta


def _write(
    p: TrainParts, groups: checkpoint.TensorGroups, meta: dict[str, Any], windows: list[Any]
) -> None:
    state = {
        "identity": p.identity,
        "spaces": msgspec.to_builtins(p.spaces, str_keys=True),
        "progress": p.progress.state(),
        "optimiser": meta,
        "optimiser_name": p.config.optimiser,
        "windows": windows,
    }
    try:
        checkpoint.save(
            p.folder / "checkpoints",
            step_version=p.progress.version,
            tensors=groups,
            state=msgspec.msgpack.decode(msgspec.msgpack.encode(state)),
            keep=p.saving.keep,
            keep_every=p.saving.keep_every,
        )
        p.metrics.checkpoints.labels("ok").inc()
        p.metrics.last_checkpoint.set(time.time())
    except checkpoint.CheckpointError as error:
        # The checkpoint before is still whole; a person must make room, training need not stop.
        p.metrics.checkpoints.labels("failed").inc()
        log.error("%s", error)


def _write_population(p: TrainParts) -> None:
    """Writes population.csv, if there is one."""
    if not isinstance(p.model, Population):
        return
    factors = {name: p.model.get_buffer(name).tolist() for name in FACTORS.values()}
    try:
        durable.write(p.folder / TABLE, p.progress.population.table(factors))
    except OSError as error:  # a full disk must not stop the run
        log.error("%s is not written: %s", TABLE, error)


def restore(p: TrainParts, optimiser: torch.optim.Optimizer) -> None:
    """Restores optimiser, target network and random state; model and counters are back already."""
    assert p.resume is not None
    tensors, state = p.resume.tensors, p.resume.state
    optimiser_state.restore(optimiser, tensors["optimiser"], state["optimiser"])
    if p.target is not None:
        load(p.target, tensors["target"])
    if p.ranks.rank == 0:  # the others keep their new seeds: the checkpoint has rank 0's state
        restore_rng(tensors["rng"])
        checkpoint.set_aside(p.folder / "checkpoints", before=p.resume.path)


def rng_state() -> dict[str, Tensor]:
    """Returns torch's global generators: the CPU's, and the current GPU's where there is one."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: dict[str, Tensor]) -> None:
    """Sets torch's global generators; a GPU's state is ignored on a machine without one."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


# What an optimiser holds for each parameter that it has moved.
_SLOTS = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "rmsprop": {"step", "square_avg"}}
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_WIDEST = 1 << 24  # unrolls of one sampler; they are held one by one
_Window = tuple[int, _Natural, list[tuple[_Natural, _Natural]]]


def check(found: checkpoint.Checkpoint, model: Model, *, target: bool) -> None:
    """Raises CheckpointError unless a learner with this model, and a target network if `target`,
    can go on from it: hashes that are right do not prove that the content is."""
    for group in ("model", "target") if target else ("model",):
        tensors, wanted = found.tensors.get(group, {}), model.state_dict()
        _same_names(found, group, set(tensors), set(wanted))
        for name, tensor in tensors.items():
            own = wanted[name]
            if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
                raise found.damaged(
                    f"{group}.{name} is {tensor.dtype} {list(tensor.shape)}, and in the network"
                    f" {own.dtype} {list(own.shape)}"
                )
            _finite(found, f"{group}.{name}", tensor)
    _check_optimiser(found, list(model.parameters()))
    spans = [span for *_, spans in found.entry(list[_Window], "windows") for span in spans]
    if any(high - low > _WIDEST for low, high in spans):
        raise found.damaged("its windows are wider than any sampler's")
    state = found.entry(dict[str, Any], "progress")
    progress = Progress()
    try:
        progress.restore(state)
        restored = progress.state()
        progress.lag(), progress.mean_return(), progress.reuse()
    except Exception as error:
        raise found.damaged(f"its progress cannot be read: {error!r}") from error
    if restored["version"] != found.version or any(restored.get(k) != v for k, v in state.items()):
        raise found.damaged("its progress contradicts itself")
    try:
        torch.Generator().set_state(found.tensors["rng"]["cpu"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise found.damaged(f"rng: {error!r}") from error


def _check_optimiser(found: checkpoint.Checkpoint, parameters: list[nn.Parameter]) -> None:
    kept = found.entry(_Optimiser, "optimiser")
    optimiser = found.entry(str, "optimiser_name")
    if optimiser not in _SLOTS:
        raise found.damaged(f"its optimiser is {optimiser!r}")
    slots = _SLOTS[optimiser]
    numbers = {name: torch.tensor(number) for name, number in kept.scalars.items()}
    by_parameter: dict[str, set[str]] = {}
    for name, tensor in {**found.tensors.get("optimiser", {}), **numbers}.items():
        index, _, slot = name.partition(".")
        by_parameter.setdefault(index, set()).add(slot)
        known = index.isdecimal() and int(index) < len(parameters)
        fit = [torch.Size(), *([parameters[int(index)].shape] if known else [])]
        if slot == "step":  # a population counts those of each policy
            fit += [shape[:1] for shape in fit]
        if not known or tensor.shape not in fit:
            raise found.damaged(f"optimiser.{name} {list(tensor.shape)} is of no parameter")
        _finite(found, f"optimiser.{name}", tensor)
    for index, there in by_parameter.items():
        _same_names(found, f"optimiser.{index}", there & slots, slots)
    if [group.params for group in kept.groups] != [list(range(len(parameters)))]:
        raise found.damaged("its optimiser is over other parameters")


class _Group(msgspec.Struct):
    params: list[int]


class _Optimiser(msgspec.Struct):
    scalars: dict[str, int | float]
    groups: list[_Group]


def _same_names(
    found: checkpoint.Checkpoint, group: str, there: set[str], wanted: set[str]
) -> None:
    if there != wanted:
        other = sorted(there ^ wanted)[0]
        raise found.damaged(f"{group} has {'no' if other in wanted else 'an unknown'} {other}")


def _finite(found: checkpoint.Checkpoint, name: str, tensor: Tensor) -> None:
    if not is_finite(tensor):
        raise found.damaged(f"{name} holds numbers that are not finite")


def append_history(p: TrainParts, line: dict[str, Any]) -> None:
    """Appends a line to the run's history, and those of its latest episodes that log.episodes asks
    for; logs it once when the disk is full."""
    try:
        append(p.folder / "history.jsonl", json.dumps(line))
        if told := [_ended(line, end) for end in p.progress.ends]:
            append(p.folder / "episodes.jsonl", "\n".join(map(json.dumps, told)))
            p.progress.ends.clear()
        p.history_gap = False
    except OSError as error:  # a full disk must not stop the run
        if not p.history_gap:
            log.error("the history has a gap from here: %s", error)
        p.history_gap = True


def _ended(line: dict[str, Any], end: tuple[int, int, float, int]) -> dict[str, Any]:
    """Returns the line of an episode that ended before this line of the history."""
    names = ("group", "column", "return", "length")
    told = {key: line[key] for key in ("t", "trained_steps", "episodes")}
    return told | dict(zip(names, end, strict=True))


def append(path: Path, line: str) -> None:
    """Appends a whole line, or raises OSError and writes none of it: on a full disk half a line
    could be written, and the next line would stand behind that half."""
    with path.open("ab", buffering=0) as file:
        before, whole = file.tell(), line.encode() + b"\n"
        if file.write(whole) < len(whole):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
