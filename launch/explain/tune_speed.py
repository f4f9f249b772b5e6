"""`headrace tune-speed RUN`: how to spread a run over this machine, by trainings of some seconds.

It begins with the run as it is, and goes on with what explain says of the fastest so far, then with
its neighbours. What a network learns from one version stays as it is: its steps, and its age.
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

log = logging.getLogger(__name__)

_TRIAL_S = 7.0  # of which starting takes two or three
_LONGEST_TRIAL_S = 60.0  # of a run that has trained too little until then
_ENDS_S = 2.0  # a trial takes so much longer than it was given
_BETTER = 1.05  # times as fast: less is chance
_LOOK_EVERY_S = 0.1
# What a remedy may set: how the work is spread. max_lag is not among them.
_KEYS = {"actor.count", "actor.groups", "actor.stepping", "unroll.envs", "pacing.batch_unrolls"}


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds settings, and what a training with them told."""

    sets: tuple[str, ...]
    figures: Figures


def tune(run: str, *, sets: Sequence[str], budget_s: float, to: Path) -> int:
    """Prints the fastest settings and writes the run with them; returns the exit status."""
    given = run_file.load(run, sets)
    logs.start("tune-speed")
    asked = runtime.StopRequested()
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="headrace-speed-") as folder:
        for measured in _measured(run, sets, budget_s, Path(folder), asked):
            found.append(measured)
            log.info("%s steps/s %s", f"{measured.figures.rate:,.0f}", _words(measured.sets))
    if asked:
        return runtime.LIMIT
    if not found:
        raise run_file.ConfigError(
            f"{run} trained nothing in {budget_s:g} s: give it more with --budget"
        )
    first, best = found[0], max(found, key=lambda one: one.figures.rate)
    if best.figures.rate < _BETTER * first.figures.rate:
        print(f"as it is, {first.figures.rate:,.0f} steps/s: nothing tried was faster")  # noqa: T201
        return runtime.OK
    head = f"# {given.run.name} with {' '.join(best.sets)}: {best.figures.rate:,.0f} steps/s here."
    try:
        durable.write(to, run_file.effective(run_file.load(run, (*sets, *best.sets)), head=head))
    except OSError as error:
        raise run_file.ConfigError(f"cannot write {to}: {error.strerror}") from error
    gain = best.figures.rate / first.figures.rate
    print(  # noqa: T201
        f"{best.figures.rate:,.0f} steps/s, {gain:.2f} times as it was, {_words(best.sets)};"
        f" train it: headrace train {to}"
    )
    return runtime.OK


def moves(figures: Figures) -> Iterator[tuple[str, ...]]:
    """Yields what may be faster than a run: what explain says, then its neighbours."""
    run = figures.run
    for finding in throughput.find(figures):
        if finding.sets and {one.partition("=")[0] for one in finding.sets} <= _KEYS:
            yield finding.sets
    count, groups, envs = run.actor.count, run.actor.groups, run.unroll.envs
    batch = run.pacing.batch_unrolls
    if count < figures.cores:
        yield (f"actor.count={count + 1}",)
    if batch % 2 == 0:
        yield f"unroll.envs={2 * envs}", f"pacing.batch_unrolls={batch // 2}"
    if envs % 2 == 0:
        yield f"unroll.envs={envs // 2}", f"pacing.batch_unrolls={2 * batch}"
    yield (f"actor.groups={2 * groups}",)
    if groups > 1:
        yield (f"actor.groups={groups // 2}",)
    if count > 1:
        yield (f"actor.count={count - 1}",)
    for stepping in ("inline", "threads", "processes", "vector"):
        if stepping != run.actor.stepping:
            yield (f"actor.stepping={stepping}",)


def _measured(
    run: str, sets: Sequence[str], budget_s: float, folder: Path, asked: runtime.StopRequested
) -> Iterator[Measured]:
    """Yields what was measured, the run as it is first, as long as there is time for another."""
    deadline, trial_s = time.monotonic() + budget_s, _TRIAL_S
    waiting: list[tuple[str, ...]] = [()]
    best: Measured | None = None
    tried: set[tuple[str, ...]] = set()
    while waiting and not asked and time.monotonic() + trial_s + _ENDS_S <= deadline:
        now = waiting.pop(0)
        tried.add(now)
        out = folder / f"{len(tried):03d}"
        figures = _train(run, (*sets, *now), out, trial_s, asked)
        if figures is None and best is None and 2 * trial_s <= _LONGEST_TRIAL_S:
            trial_s, waiting = 2 * trial_s, [now]
        if figures is None:
            continue
        measured = Measured(now, figures)
        if best is None or figures.rate >= _BETTER * best.figures.rate:
            best = measured
            nearby = [_joined(now, more) for more in moves(figures)]
            waiting = [one for one in nearby if one not in tried and _possible(run, sets, one)]
        yield measured


def _train(
    run: str, sets: Sequence[str], out: Path, seconds: float, asked: runtime.StopRequested
) -> Figures | None:
    """Trains for some seconds; None = it did not work, or trained too little to tell."""
    every = (*sets, "stop.return=none", "stop.steps=none", f"stop.seconds={seconds:g}")
    one = Training(run, every, out)
    one.start()
    try:
        while not (one.ended or asked):
            time.sleep(_LOOK_EVERY_S)
    finally:
        training.end([one])
    try:
        figures = run_figures.read(out)
    except run_file.ConfigError:
        return None
    return figures if figures.rate > 0 and not asked else None


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
