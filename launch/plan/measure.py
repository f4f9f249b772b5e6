"""Measures what the parts of a run cost: trains it here for some seconds, and looks how much
processor time each of its processes used meanwhile."""

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import run_file
from headrace.launch.plan.costs import Costs
from headrace.launch.process import memory_use, runtime
from headrace.launch.results import learning_curve

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_STARTS_S = 5.0  # about, until the clock starts
_WARM_S = 2.0  # from the first version on: the first batches are slower
_STARTS_WITHIN_S = 60.0
_LEAST_S = 1e-9  # of a part that used no tick of the clock


@dataclass(frozen=True, slots=True)
class Look:
    """Holds what was known at one moment."""

    t: float  # of the newest line of the history
    steps: int  # trained on by then
    cpu_s: dict[str, float]  # by process, as "learner"


class LeftError(Exception):
    """Says that somebody asked to stop."""


def measure(
    run: str, sets: Sequence[str], *, seconds: float, asked: runtime.StopRequested
) -> Costs:
    """Returns the costs on this machine; ConfigError where the run trains nothing."""
    given = run_file.load(run, sets)
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as folder:
        ends = (*training.ENDLESS, "log.sinks=[]")
        one = Training(run, (*sets, *ends), Path(folder) / "run", evaluate=False)
        one.start()
        log.info("trains here for about %.0f s, to see what a step costs", seconds + _STARTS_S)
        try:
            _wait_for_version(one, asked)
            _pause(_WARM_S, asked)
            first = _look(one, asked)
            _pause(seconds, asked)
            last, samplers_mib = _look(one, asked), _samplers_mib(one.pid)
        finally:
            training.end([one])
        ended, broker = _report(one.out / "summary.json"), _report(one.out / "broker.json")
    found = costs(first, last, cores=runtime.cores(), samplers_mib=samplers_mib / given.actor.count)
    return msgspec.structs.replace(
        found,
        step_bytes=ended.get("wire_bytes_per_step") or 0.0,
        weights_bytes=float(broker.get("weights_bytes", 0)),
    )


def _report(path: Path) -> dict[str, Any]:
    """Returns what a run left; {} = it did not."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def costs(first: Look, last: Look, *, cores: int, samplers_mib: float = 0.0) -> Costs:
    """Returns the costs by what happened between two looks. Pure."""
    steps, wall = last.steps - first.steps, last.t - first.t
    if steps <= 0 or wall <= 0:
        raise run_file.ConfigError("too little was trained to tell what a step costs: --seconds")
    spent = {name: last.cpu_s.get(name, 0.0) - cpu for name, cpu in first.cpu_s.items()}
    if not {"broker", "learner"} <= spent.keys():
        raise run_file.ConfigError("the run's processes are not seen, or one of them ended")
    samplers = sum(cpu for name, cpu in spent.items() if name.startswith("actor-"))
    return Costs(
        sampler_s=max(_LEAST_S, samplers / steps),
        learner_s=max(_LEAST_S, spent["learner"] / steps),
        broker_s=max(_LEAST_S, spent["broker"] / steps),
        busy=min(1.0, max(0.05, sum(spent.values()) / (wall * cores))),
        sampler_mib=samplers_mib,
    )


def _pause(seconds: float, asked: runtime.StopRequested) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if asked:
            raise LeftError
        time.sleep(min(left, _LOOK_EVERY_S))


def _wait_for_version(one: Training, asked: runtime.StopRequested) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while not any(line.get("version", 0) for line in _history(one)):
        if one.ended or time.monotonic() > deadline:
            words = one.log.read_text(errors="replace").strip().splitlines()
            why = words[-1] if words else "nothing was said"
            raise run_file.ConfigError(f"the run trains nothing here: {why}")
        _pause(_LOOK_EVERY_S, asked)


def _look(one: Training, asked: runtime.StopRequested) -> Look:
    """Looks at the moment at which a line of the history is written."""
    before = len(_history(one))
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while len(lines := _history(one)) <= before:
        if one.ended or time.monotonic() > deadline:
            raise run_file.ConfigError("the run ended, or stood still, while it was measured")
        _pause(_LOOK_EVERY_S / 10, asked)
    line = lines[-1]
    return Look(line["t"], int(line["trained_steps"]), _cpu_s(one.pid))


def _history(one: Training) -> list[dict[str, float]]:
    return learning_curve.read(one.out / "history.jsonl")


def _cpu_s(root: int) -> dict[str, float]:
    """Returns the processor seconds of each process below, by the name that ps shows; those of one
    name are added up."""
    tick, found = os.sysconf("SC_CLK_TCK"), dict[str, float]()
    for pid in memory_use.with_descendants(root):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # ended meanwhile
        fields = rest.split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return found


def _samplers_mib(root: int) -> float:
    """Returns the memory of all samplers; a page that n processes share counts 1/n in each."""
    samplers = []
    for pid in memory_use.with_descendants(root):
        with contextlib.suppress(OSError):  # ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().startswith("actor-"):
                samplers.append(pid)
    return memory_use.pss_bytes(samplers) / 2**20
