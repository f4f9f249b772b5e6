"""Compiles an optimiser step in a process of its own, so that training goes on meanwhile."""

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import Coefficients
from headrace.learner.step.compiled_step import CompiledStep, FlatStep

_NICE = 19  # learner and samplers come first
_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # where torch's compiler keeps what it makes


class CompileAhead:
    """Has such a process until it is done; it ends with us."""

    def __init__(self, flat: FlatStep, sample: Sample) -> None:
        """Begins to compile the step; `sample`: one that it fits."""
        self._flat = flat
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-step-")
        inside = (str(Path(self._folder.name, name)) for name in ("step", "made", "cache"))
        self._asked, self._made, cache = inside
        # Of our own unless the user has named one: what is in torch's, in /tmp, may be anybody's.
        self._cache = os.environ.get(_CACHE, cache)
        Path(self._asked).write_bytes(pickle.dumps((flat, sample)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._asked, self._made, str(_NICE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _CACHE: self._cache},
        )

    def ended(self) -> str | None:
        """Returns why it could not be compiled, "" = it was; None = not yet."""
        if self._process.poll() is None:
            return None
        said, _ = self._process.communicate()
        if not self._process.returncode:
            return ""
        told = said.decode(errors="replace").strip()
        return told or f"the compiler ended with {self._process.returncode}"

    def made(self, stats: Sequence[str]) -> CompiledStep:
        """Returns the compiled step, which is read in a few seconds. `stats`: names of the loss's
        figures."""
        # Late, as below: torch takes seconds for it, and has it once there is an optimiser.
        from torch._inductor import config
        from torch._inductor.standalone_compile import CompiledArtifact

        named = _CACHE in os.environ
        os.environ[_CACHE] = self._cache
        try:
            with config.patch(compile_threads=1):  # no processes: nothing is left to compile
                artifact = CompiledArtifact.load(path=self._made)
                return CompiledStep(self._flat, lambda: artifact, stats)
        finally:
            if not named:
                del os.environ[_CACHE]

    def close(self) -> None:
        """Ends it, and removes its files."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def main(asked: str, made: str, nice: str) -> int:
    """Compiles what is in one file into the other; says why it could not."""
    threading.Thread(target=_end_with_parent, args=[Path(made).parent], daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(int(nice))
    torch.set_num_threads(1)
    try:
        from torch._inductor import standalone_compile
        from torch.fx.experimental.proxy_tensor import make_fx

        flat, sample = pickle.loads(Path(asked).read_bytes())  # noqa: S301 - our parent wrote it
        inputs: list[Any] = flat.inputs(sample, 0.0, Coefficients(0.0, 0.0, 0.0))
        recorded = make_fx(flat)(*inputs)
        standalone_compile(recorded, inputs, dynamic_shapes="from_example_inputs").save(path=made)
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on without
        print(f"{type(error).__name__}: {error}".splitlines()[0])  # noqa: T201
        return 1
    return 0


def _end_with_parent(folder: Path) -> None:
    """Waits for the end of our input, which our parent holds open while it lives; then all of it
    goes."""
    os.read(sys.stdin.fileno(), 1)  # not by the buffer: Python would wait for its lock at the end
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
