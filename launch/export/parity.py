"""Compares an exported file with its torch network, on random observations."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter
from headrace.launch.export.onnx_module import OnnxModule, TensorPort, part_name
from headrace.launch.results.loaded_run import LoadedRun

OBSERVATIONS = 1000
DIFFERENCE = 1e-4  # the largest allowed; of numbers above 1 as a share of them
# Sizes of the batches: every size must work.
_BATCHES = (1, 3, 96, 100)

Arrays = dict[str, NDArray[Any]]


class Parity:
    """Draws random inputs, runs both sides and compares their outputs."""

    def __init__(self, found: LoadedRun, module: OnnxModule) -> None:
        self._found, self._module = found, module
        self._actions = ActionConverter(found.spaces.action)
        self._rng = np.random.default_rng(0)
        self._norms = _norms(found)

    def check(self, path: Path) -> float:
        """Returns the largest difference; infinity = one side has a NaN."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        done, largest, batch = 0, 0.0, 0
        while done < OBSERVATIONS:
            rows = min(_BATCHES[min(batch, len(_BATCHES) - 1)], OBSERVATIONS - done)
            largest = max(largest, self._compare(session, self._inputs(rows))[0])
            done, batch = done + rows, batch + 1
        return max(largest, self._episode(session)) if self._found.model.memory else largest

    def _episode(self, session: Any) -> float:
        """Compares as many steps in sequence, where each side continues from its own memory."""
        largest = 0.0
        zeros = np.zeros((1, self._found.model.memory), np.float32)
        memories = zeros, zeros
        for _ in range(OBSERVATIONS):
            inputs = self._inputs(1)
            difference, memories = self._compare(session, inputs, memories)
            largest = max(largest, difference)
        return largest

    def _compare(
        self,
        session: Any,
        inputs: Arrays,
        memories: tuple[NDArray[Any], NDArray[Any]] | None = None,
    ) -> tuple[float, tuple[NDArray[Any], NDArray[Any]]]:
        """Returns the largest difference, and the memories of both sides."""
        ours, theirs = (
            inputs if memories is None else inputs | {"memory": memory}
            for memory in (memories or (None, None))
        )
        with torch.inference_mode():
            tensors = [torch.from_numpy(ours[port.name]) for port in self._module.inputs]
            expected = [output.numpy() for output in self._module(*tensors)]
        names = [port.name for port in self._module.outputs]
        there = dict(zip(names, session.run(names, theirs), strict=True))
        here = dict(zip(names, expected, strict=True))
        plain = [name for name in ("params", "value", "next.memory") if name in names]
        largest = max(difference(here[name], there[name]) for name in plain)
        largest = max(largest, self._wrong_action(there))
        none = np.zeros(0)
        return largest, (here.get("next.memory", none), there.get("next.memory", none))

    def _wrong_action(self, there: Arrays) -> float:
        """Compares the file's actions with those that samplers make of the same parameters."""
        rows = self._found.model.distribution.mode(there["params"])
        expected = self._actions.many(rows)
        largest = 0.0
        for part in self._found.spaces.action.parts:
            value = expected
            for key in part.path:
                value = value[key]
            largest = max(largest, difference(value, there[part_name(part)]))
        return largest

    def _inputs(self, rows: int) -> Arrays:
        return {port.name: self._draw(port, rows) for port in self._module.inputs}

    def _draw(self, port: TensorPort, rows: int) -> NDArray[Any]:
        rng, leaf = self._rng, port.leaf
        shape = (rows, *port.shape)
        if leaf is None:  # the memory: within tanh's range
            return rng.uniform(-1, 1, shape).astype(np.float32)
        if leaf.mask:
            return self._mask(rows).astype(port.dtype)
        if leaf.categories:
            highest = np.tile(leaf.categories, leaf.stack).reshape(port.shape)
            first = np.reshape(leaf.start or 0, leaf.shape if leaf.start else ())
            counted = rng.integers(0, np.broadcast_to(highest, shape))
            return (first + counted).astype(port.dtype)
        dtype = np.dtype(port.dtype)
        norms = self._norms.get(leaf.name)
        if dtype.kind in "iu" and not (leaf.image and norms):
            return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
        mean, std = norms or (0.0, 1.0)
        drawn = mean + std * rng.standard_normal(shape)
        return (drawn.round().clip(0, 255) if leaf.image else drawn).astype(dtype)

    def _mask(self, rows: int) -> NDArray[np.bool_]:
        """Draws a mask that allows half of the values, and at least one of each choice."""
        parts = []
        for n in self._found.spaces.action.categories:
            part = self._rng.random((rows, n)) < 0.5
            part[np.arange(rows), self._rng.integers(0, n, rows)] = True
            parts.append(part)
        return np.concatenate(parts, axis=1)


def difference(here: NDArray[Any], there: NDArray[Any]) -> float:
    """Returns the largest difference, relative for numbers above 1; infinity = one side has a
    NaN."""
    if here.shape != there.shape:
        return float("inf")
    a, b = here.astype(np.float64), there.astype(np.float64)
    with np.errstate(invalid="ignore"):
        # The same infinity on both sides counts as equal.
        apart = np.where(a == b, 0.0, np.abs(a - b) / np.maximum(1.0, np.abs(a)))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def _norms(found: LoadedRun) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Returns mean and deviation of observations in training: a normaliser clips all others."""
    norms = {}
    for normaliser in (found.model.normaliser, found.model.images):
        if normaliser is None:
            continue
        at, mean, std = 0, normaliser.mean.numpy(), np.sqrt(normaliser.var.numpy())
        for leaf in normaliser.leaves:
            shape = leaf.shape if leaf.image else leaf.seen
            here = slice(at, at := at + math.prod(shape))
            norms[leaf.name] = mean[here].reshape(shape), std[here].reshape(shape)
    return norms
