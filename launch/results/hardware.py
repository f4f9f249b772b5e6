"""The hardware and software on which a run was measured."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from headrace.launch.process import runtime

_PACKAGES = ("headrace", "torch", "numpy", "gymnasium", "pyzmq")


def describe() -> dict[str, Any]:
    """Returns names and sizes only: nothing that says whose machine it is."""
    import torch

    return {
        "cpu": _cpu(),
        "cores": runtime.cores(),
        "memory_gb": _memory_gb(),
        "gpus": [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
