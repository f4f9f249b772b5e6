"""`headrace export`: the trained policy as an ONNX file, checked against its torch network.

A file that computes something else than the network is deleted.
"""

import contextlib
import functools
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headrace.broker import durable
from headrace.broker.errors import install_extra
from headrace.launch.config import run_file
from headrace.launch.export.onnx_module import OnnxModule, TensorPort
from headrace.launch.export.parity import DIFFERENCE, OBSERVATIONS, Parity
from headrace.launch.process import runtime
from headrace.launch.results import loaded_run
from headrace.launch.writing import writing

_OPSET = 18
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LONGEST_LINE = 300
# Two rows: a batch of one could be taken for an axis that is always 1.
_EXAMPLE_ROWS = 2


class ExportError(run_file.ConfigError):
    """Signals that the policy cannot be exported here; its text is one line."""


_writing = functools.partial(writing, kind=ExportError)


def export(run_dir: Path, *, which: str | None, policy: int | None, out: Path | None) -> int:
    """Writes OUT and OUT.json, both or none; returns the exit status. `policy`: of a population."""
    _check_packages()
    found = loaded_run.one_policy(loaded_run.load(run_dir, which), policy)
    path = out or run_dir / "model.onnx"
    described = path.with_name(f"{path.name}.json") if path.name else path
    for file in (path, described):
        with _writing(file):
            runtime.make_room(file)
    module = OnnxModule(found.model, found.spaces)
    facts = _facts(found, module)
    part, described_part = (file.with_name(f".{file.name}.part") for file in (path, described))
    try:
        with _writing(path):
            _write(module, facts, part)
        difference = _difference(found, module, part)
        if not difference <= DIFFERENCE:
            raise ExportError(
                f"onnxruntime and torch differ by {difference:.1e} on {found.path}, more than"
                f" {DIFFERENCE:.0e}; no file was written"
            )
        with _writing(described):
            durable.write(described_part, json.dumps(facts, indent=2) + "\n")
        _rename_both(part, path, described_part, described)
    finally:
        runtime.discard(part)
        runtime.discard(described_part)
    print(_result_text(found, module, path, difference))  # noqa: T201
    return runtime.OK


def _rename_both(part: Path, path: Path, described_part: Path, described: Path) -> None:
    """Renames both files into place. If the model's fails, the previous description is restored."""
    with _writing(described):
        before = described.read_bytes() if described.exists() else None
        durable.commit(described_part, described)
    try:
        with _writing(path):
            durable.commit(part, path)
    except ExportError:
        with contextlib.suppress(OSError):
            if before is None:
                described.unlink()
            else:
                durable.write(described, before)
        raise


def _check_packages() -> None:
    for package in _PACKAGES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(package)
        except ImportError as error:
            raise ExportError(
                f"export needs {error.name or package}: {install_extra('onnx')}"
            ) from error


def _write(module: OnnxModule, facts: dict[str, Any], path: Path) -> None:
    example = tuple(
        torch.zeros(_EXAMPLE_ROWS, *port.shape, dtype=getattr(torch, port.dtype))
        for port in module.inputs
    )
    with _quiet():
        try:
            program = torch.onnx.export(
                _trace(module, example),
                (),
                dynamo=True,
                opset_version=_OPSET,
                verbose=False,
                input_names=[port.name for port in module.inputs],
                output_names=[port.name for port in module.outputs],
            )
        except Exception as error:
            # A user's own network may do anything that ONNX cannot express.
            line = " ".join(str(error.__cause__ or error).split())[:_LONGEST_LINE]
            raise ExportError(f"torch cannot export this network: {line}") from error
        assert program is not None
        program.model.metadata_props.update(
            {"headrace": json.dumps(facts), "run": facts["run"], "version": str(facts["version"])}
        )
        program.save(str(path), external_data=False)


def _difference(found: loaded_run.LoadedRun, module: OnnxModule, path: Path) -> float:
    try:
        return Parity(found, module).check(path)
    except Exception as error:
        line = " ".join(str(error).split())[:_LONGEST_LINE]
        raise ExportError(f"onnxruntime cannot run what torch exported: {line}") from error


def _trace(module: OnnxModule, example: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Traces the module for any number of rows. Networks that call len() of a tensor need strict
    mode."""
    batch = torch.export.Dim("batch")
    shapes = (tuple({0: batch} for _ in example),)
    module.eval()
    try:
        return torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
    except RuntimeError:
        return torch.export.export(module, example, dynamic_shapes=shapes, strict=True)


def _facts(found: loaded_run.LoadedRun, module: OnnxModule) -> dict[str, Any]:
    """Returns what a program that runs the file needs to know."""
    return {
        "run": found.run.run.name,
        "env": found.run.env.id,
        "version": found.version,
        "opset": _OPSET,
        "inputs": [_port(port) for port in module.inputs],
        "outputs": [_port(port) for port in module.outputs],
        "action": "greedy, as the environment takes it",
        "params": "all logits, then the means, then the logarithms of the standard deviations",
        "begin": "memory and previous.* are 0 at an episode's first step, previous.choices are -1",
    }


def _port(port: TensorPort) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": port.name,
        "dtype": port.dtype,
        "shape": ["batch", *port.shape],
    }
    if port.leaf is not None:
        facts["leaf"] = port.leaf.name
        if port.leaf.categories:
            facts["categories"] = list(port.leaf.categories)
        if port.leaf.start:
            facts["start"] = list(port.leaf.start)
        if port.leaf.stack > 1:
            facts["stacked"] = f"the newest {port.leaf.stack} frames, oldest first"
        if port.leaf.mask:
            facts["mask"] = "1 = this value may be chosen, 0 = it may not"
    return facts


def _result_text(
    found: loaded_run.LoadedRun, module: OnnxModule, path: Path, difference: float
) -> str:
    def listed(ports: tuple[TensorPort, ...]) -> str:
        return ", ".join(f"{port.name} {port.dtype}{['batch', *port.shape]}" for port in ports)

    return "\n".join(
        (
            f"exported    {path}, {path.stat().st_size / 1e6:.2f} MB: {found.run.run.name},"
            f" version {found.version}",
            f"inputs      {listed(module.inputs)}".replace("'", ""),
            f"outputs     {listed(module.outputs)}".replace("'", ""),
            f"checked     {OBSERVATIONS:,} random observations in onnxruntime: largest difference"
            f" {difference:.1e}",
            f"described   {path}.json",
        )
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's remarks about itself and about torchvision."""
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
