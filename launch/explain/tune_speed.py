"""`headrace tune-speed RUN`: how to spread a run over this machine, by trainings of some seconds.

It begins with the run as it is, and goes on with what explain says of the fastest so far, then with
its neighbours. One version may be of more steps, up to eight times as many; its age stays as it is.
"""

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.broker import durable
from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import run_file
from headrace.launch.explain import figures as run_figures
from headrace.launch.explain import throughput
from headrace.launch.explain.figures import Figures
from headrace.launch.process import logs, runtime
from headrace.launch.results import learning_curve
from headrace.launch.writing import writing

log = logging.getLogger(__name__)

_MEASURED_S = 4.0  # of each trial, from its first version on
_LONGEST_S = 12.0  # of a trial that trains nothing until then: how fast it plays tells as well
_LEAST_VERSIONS = 6  # fewer say too little of how fast it trains
_BETTER = 1.05  # times as fast: less is chance
_LOOK_EVERY_S = 0.1
_WAITS = 0.2  # share of their time from which on samplers and learner wait for one another
_MOST_TIMES = 8  # as many steps in a version as given: more would be another way to learn
# What a remedy may set: how the work is spread. max_lag is not among them.
_KEYS = {"actor.count", "actor.groups", "actor.stepping", "unroll.envs", "pacing.batch_unrolls"}


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds settings, and what a training with them told."""

    sets: tuple[str, ...]
    figures: Figures

    @property
    def rate(self) -> float:
        """Returns the steps a second: trained ones, or of few versions those played."""
        many = len(self.figures.lines) >= _LEAST_VERSIONS
        return self.figures.rate if many else self.figures.played


def tune(run: str, *, sets: Sequence[str], budget_s: float, to: Path) -> int:
    """Prints the fastest settings and writes the run with them; returns the exit status."""
    given = run_file.load(run, sets)
    logs.start("tune-speed")
    asked = runtime.StopRequested()
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="headrace-speed-") as folder:
        for measured in _measured(run, sets, budget_s, Path(folder), asked):
            found.append(measured)
            log.info("%s steps/s %s", f"{measured.rate:,.0f}", _words(measured.sets))
    if asked:
        return runtime.LIMIT
    if not any(one.rate for one in found):
        raise run_file.ConfigError(f"{run} played nothing: try it alone, headrace train {run}")
    first, best = found[0], max(found, key=lambda one: one.rate)
    if best.rate < _BETTER * first.rate:
        print(f"as it is, {first.rate:,.0f} steps/s: nothing tried was faster")  # noqa: T201
        return runtime.OK
    head = f"# {given.run.name} with {' '.join(best.sets)}: {best.rate:,.0f} steps/s here."
    with writing(to):
        durable.write(to, run_file.effective(run_file.load(run, (*sets, *best.sets)), head=head))
    gain, larger = best.rate / first.rate, _rows(best.figures.run) / _rows(given)
    version = "" if larger == 1 else f", one version {larger:g} times as large"
    print(  # noqa: T201
        f"{best.rate:,.0f} steps/s, {gain:.2f} times as it was{version}, {_words(best.sets)};"
        f" train it: headrace train {to}"
    )
    return runtime.OK


def moves(figures: Figures, most_rows: int) -> Iterator[tuple[str, ...]]:
    """Yields what may be faster than a run: what explain says, then its neighbours. A version is of
    no more than `most_rows` x unroll.length steps."""
    run = figures.run
    for finding in throughput.find(figures):
        if finding.sets and {one.partition("=")[0] for one in finding.sets} <= _KEYS:
            yield finding.sets
    count, groups, envs = run.actor.count, run.actor.groups, run.unroll.envs
    batch = run.pacing.batch_unrolls
    if min(figures.learner.get("wait", 0.0), figures.samplers.get("wait_credit", 0.0)) >= _WAITS:
        for times in (4, 2):  # places for more unrolls at a time
            if envs * times * batch <= most_rows:
                yield (f"pacing.batch_unrolls={times * batch}",)
    for wider, fewer in ((4, 4), (4, 2), (4, 1), (2, 2), (2, 1)):
        if batch % fewer == 0 and envs * wider * (batch // fewer) <= most_rows:
            yield f"unroll.envs={wider * envs}", f"pacing.batch_unrolls={batch // fewer}"
    yield (f"actor.groups={2 * groups}",)
    if count > 1:
        yield (f"actor.count={count - 1}",)
    if count < figures.cores:
        yield (f"actor.count={count + 1}",)
    for stepping in ("vector", "inline", "threads", "processes"):
        if stepping != run.actor.stepping:
            yield (f"actor.stepping={stepping}",)
    if groups > 1:
        yield (f"actor.groups={groups // 2}",)


def _rows(run: run_file.Run) -> int:
    """Returns the environments whose steps are one version's."""
    return run.unroll.envs * run.pacing.batch_unrolls


def _measured(
    run: str, sets: Sequence[str], budget_s: float, folder: Path, asked: runtime.StopRequested
) -> Iterator[Measured]:
    """Yields what was measured, the run as it is first, as long as there is time for another."""
    deadline, took = time.monotonic() + budget_s, 0.0
    most_rows = _MOST_TIMES * _rows(run_file.load(run, sets))
    waiting: list[tuple[str, ...]] = [()]
    best: Measured | None = None
    tried: set[tuple[str, ...]] = set()
    while waiting and not asked and time.monotonic() + took <= deadline:
        now, began = waiting.pop(0), time.monotonic()
        tried.add(now)
        figures = _train(run, (*sets, *now), folder / f"{len(tried):03d}", asked)
        took = max(took, time.monotonic() - began)
        if figures is None:
            continue
        measured = Measured(now, figures)
        if best is None or measured.rate >= _BETTER * best.rate:
            best = measured
            nearby = [_joined(now, more) for more in moves(figures, most_rows)]
            waiting = [one for one in nearby if one not in tried and _possible(run, sets, one)]
        yield measured


def _train(
    run: str, sets: Sequence[str], out: Path, asked: runtime.StopRequested
) -> Figures | None:
    """Trains for some seconds; None = it did not work."""
    one = Training(run, (*sets, *training.ENDLESS), out)
    one.start()
    deadline = time.monotonic() + _LONGEST_S
    try:
        while not (one.ended or asked or time.monotonic() > deadline):
            time.sleep(_LOOK_EVERY_S)
            at = [line["t"] for line in learning_curve.read(out / "history.jsonl") if "t" in line]
            if at and at[-1] - at[0] >= _MEASURED_S:
                break
    finally:
        training.end([one])
    try:
        figures = run_figures.read(out)
    except run_file.ConfigError:
        return None
    return None if asked else figures


def _joined(sets: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the settings with others in their place or beside them."""
    found = {one.partition("=")[0]: one for one in (*sets, *more)}
    return tuple(sorted(found.values()))


def _possible(run: str, sets: Sequence[str], more: tuple[str, ...]) -> bool:
    try:
        run_file.load(run, (*sets, *more))
    except run_file.ConfigError:
        return False
    return True


def _words(sets: Sequence[str]) -> str:
    return f"with {' '.join(sets)}" if sets else "as it is"
