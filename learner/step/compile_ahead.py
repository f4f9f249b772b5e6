"""Compiles an optimiser step in a process of its own, so that training goes on meanwhile.

What torch's compiler makes stays in its cache on this machine; the learner then has it in seconds.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.step.compiled_step import CompiledStep, StepParts

_NICE = 19  # learner and samplers come first


class CompileAhead:
    """Has such a process until it is done; it ends with us."""

    def __init__(
        self, parts: StepParts, optimiser: torch.optim.Optimizer, sample: Sample, *, squares: bool
    ) -> None:
        with tempfile.NamedTemporaryFile(prefix="headrace-step-", delete=False) as file:
            pickle.dump((parts, optimiser, sample, squares), file)
        self._file = Path(file.name)
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )

    def ended(self) -> str | None:
        """Returns why it could not be compiled, "" = it was; None = not yet."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        said = self._process.stdout.read().decode(errors="replace").strip()
        self._file.unlink(missing_ok=True)
        if self._process.returncode:
            return said or f"its compiler ended with {self._process.returncode}"
        return ""


def main(path: str) -> int:
    """Compiles what is in the file; says why it could not."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    torch.set_num_threads(1)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - our parent wrote it
            parts, optimiser, sample, squares = pickle.load(file)  # noqa: S301 - the same
        Path(path).unlink()
        CompiledStep(parts, optimiser, sample, squares=squares)
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on without
        print(f"{type(error).__name__}: {error}".splitlines()[0])  # noqa: T201
        return 1
    return 0


def _end_with_parent() -> None:
    """Waits for the end of our input, which our parent holds open while it lives."""
    os.read(sys.stdin.fileno(), 1)  # not by the buffer: Python would wait for its lock at the end
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
