"""Runs `headrace train` as a user does and returns its summary."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def train(
    run: str,
    options: Sequence[str],
    sets: Sequence[str] = (),
    afterwards: Callable[[Path], dict[str, Any]] | None = None,
    *,
    evaluated: bool = False,
) -> dict[str, Any]:
    """Returns the run's summary, and what `afterwards` finds in its folder."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "headrace.launch.cli",
            "train",
            run,
            "--quiet",
            *([] if evaluated else ["--no-evaluate"]),
            "--out",
            str(out),
        ]
        settings = [word for setting in sets for word in ("--set", setting)]
        subprocess.run([*command, *options, *settings], check=False)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary if afterwards is None else summary | afterwards(out)
