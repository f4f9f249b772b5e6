"""The output of every benchmark: its parameters first, then one JSON line that names the
machine."""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "pyzmq", "gymnasium", "numpy")


def parameters(**values: Any) -> None:
    print("  ".join(f"{name} {value}" for name, value in values.items()), flush=True)  # noqa: T201


def result(bench: str, figures: Mapping[str, Any]) -> None:
    print(json.dumps({"bench": bench, **figures, "machine": machine()}), flush=True)  # noqa: T201


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
