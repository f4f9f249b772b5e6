"""A Ray cluster: connects to it, and takes the places of broker, evaluator and learner."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.broker.errors import install_extra
from headrace.launch.config import run_file

_ANSWERS_WITHIN_S = 30.0  # Ray itself would try for minutes


def connect(address: str) -> Any:
    """Returns the package ray, connected; ConfigError where no cluster answers soon."""
    try:
        import ray
    except ImportError as error:
        raise run_file.ConfigError(
            f"Ray is not installed here ({error}): {install_extra('ray')}"
        ) from error
    words = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(words, capture_output=True, check=True, timeout=_ANSWERS_WITHIN_S)
        ray.init(address=address, logging_level="ERROR")
    except (subprocess.SubprocessError, OSError, RuntimeError, ValueError) as error:
        raise run_file.ConfigError(
            f"no Ray cluster answers at {address}: start one on this machine (ray start), or name"
            f" another, --address HOST:PORT ({' '.join(str(error).split())[-200:]})"
        ) from error
    return ray


def reserve(
    ray: Any, bundles: Sequence[dict[str, int]], *, wait_s: float, asked: Callable[[], bool]
) -> Any:
    """Returns a placement group; ConfigError where there is none within this time."""
    group = ray.util.placement_group(list(bundles), strategy="PACK")
    deadline = time.monotonic() + wait_s
    while not group.wait(1) and not asked():
        if time.monotonic() > deadline:
            ray.util.remove_placement_group(group)
            here, free = ray.cluster_resources(), ray.available_resources()
            words = [
                f"{' + '.join(f'{bundle[what]:g}' for bundle in bundles if bundle[what])} {what}s,"
                f" and of {here.get(what, 0):g} there are {free.get(what, 0):g} free"
                for what in ("CPU", "GPU")
                if any(bundle[what] for bundle in bundles)
            ]
            raise run_file.ConfigError(
                f"no place for broker, evaluator and learner within {wait_s:g} s: they need"
                f" {'; '.join(words)}; a sum may lie on several machines, a part of it on one"
            )
    return group


def free_cpus() -> dict[int | str, int]:
    """Returns the whole CPUs that nobody holds, by machine."""
    from ray._private.state import available_resources_per_node

    return {
        machine: int(free.get("CPU", 0)) for machine, free in available_resources_per_node().items()
    }
