"""Measures what the parts of a run cost: trains it here for some seconds."""

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import run_file
from headrace.launch.plan import costs
from headrace.launch.plan.costs import Costs
from headrace.launch.process import runtime
from headrace.launch.results import learning_curve

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_STARTS_S = 7.0  # about, until it trains, and is warm
_WARM_S = 3.0  # from the first version on, until it looks at what its processes use
_STARTS_WITHIN_S = 60.0


class LeftError(Exception):
    """Says that somebody asked to stop."""


def measure(
    run: str, sets: Sequence[str], *, seconds: float, asked: runtime.StopRequested
) -> Costs:
    """Returns the costs on this machine; ConfigError where the run trains nothing."""
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as folder:
        ends = (*training.ENDLESS, "log.sinks=[]", "actor.acting=local")
        one = Training(run, (*sets, *ends), Path(folder) / "run", evaluate=False)
        one.start()
        log.info("trains here for about %.0f s, to see what a step costs", seconds + _STARTS_S)
        try:
            if not _comes_to(one, asked, _STARTS_WITHIN_S, until=lambda: _has_trained(one)):
                raise run_file.ConfigError(f"the run trains nothing here: {_last_words(one)}")
            if _comes_to(one, asked, seconds + _WARM_S, until=lambda: one.ended):
                raise run_file.ConfigError(f"the run ended early: {_last_words(one)}")
        finally:
            training.end([one])
        return costs.of_run(one.out)


def _comes_to(
    one: Training, asked: runtime.StopRequested, seconds: float, *, until: Callable[[], bool]
) -> bool:
    """Waits; returns whether it came to that before the time was up, or the run ended."""
    deadline = time.monotonic() + seconds
    while not (found := until()) and not one.ended and time.monotonic() < deadline:
        if asked:
            raise LeftError
        time.sleep(_LOOK_EVERY_S)
    return found or until()


def _has_trained(one: Training) -> bool:
    lines = learning_curve.read(one.out / "history.jsonl")
    return any(line.get("version", 0) for line in lines)


def _last_words(one: Training) -> str:
    words = one.log.read_text(errors="replace").strip().splitlines()
    return words[-1] if words else "nothing was said"
