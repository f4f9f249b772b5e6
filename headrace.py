"""Headrace from Python: `headrace.train("cartpole", stop_return=475)`.

Runs are trained by processes of their own, as on the command line; this module starts them, waits,
and returns what the run's summary says.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch import toml
from launch.cli import run_folder
from launch.config import ConfigError, Run
from launch.config import load as Config  # noqa: N812  # reads as the noun it returns

__all__ = ["Config", "ConfigError", "Run", "train"]


def train(
    run: str = "cartpole",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Trains a run on this machine and returns its summary.

    Settings name a section and its keys, `learner={"lr": 1e-3}`, or a stop criterion,
    `stop_return=475`. Wrong ones raise ConfigError.
    """
    sets = [f"{key}={toml.value(value)}" for key, value in _flat(settings).items()]
    name = Config(run, sets).run.name
    folder = Path(out) if out else run_folder(Path("headrace-runs"), name, newest=resume)
    command = [sys.executable, "-m", "launch.cli", "train", run, "--out", str(folder)]
    command += [word for setting in sets for word in ("--set", setting)]
    command += ["--resume"] * resume + ["--quiet"] * quiet
    status = subprocess.run(command, check=False).returncode
    if status not in (0, 3):
        raise RuntimeError(f"headrace train ended with status {status}; its lines say why")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """learner={"lr": 1} and stop_return=2 as learner.lr = 1 and stop.return = 2."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name.replace("_", ".", 1)] = value
    return flat
