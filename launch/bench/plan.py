"""Tells how far off `headrace plan` is: predicts runs that were not measured, and trains them.

Measured are the run as it is, and with unrolls four times as long; predicted are other numbers of
samplers, unrolls twice as long, and learners held to a part of a core.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.launch.bench import output
from headrace.launch.bench.train_command import train
from headrace.launch.comparison import training
from headrace.launch.config import run_file
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.measure import measure
from headrace.launch.process import memory_use, runtime

_SAMPLERS = (1, 2, 4)
_TIMES = 4  # as long as the run's are the longer unrolls
_PARTS = (0.75, 0.5)  # of the rate that the learner reaches, those that it is held to
_LOOK_EVERY_S = 0.02  # more often, and the stops themselves would cost the learner time


class Case(NamedTuple):
    """Holds a run to predict."""

    sets: tuple[str, ...]
    predicted: float  # steps a second
    share: float = 1.0  # of a core that the learner may use


def bench(name: str, sets: Sequence[str] = (), *, seconds: float = 20.0) -> dict[str, Any]:
    """Measures, predicts, trains, and compares."""
    run = run_file.load(name, sets)
    length = run.unroll.length
    output.parameters(run=name, seconds=seconds, cores=runtime.cores(), sets=" ".join(sets))
    asked = runtime.StopRequested()
    short = measure(name, sets, seconds=seconds, asked=asked)
    long = measure(name, (*sets, f"unroll.length={_TIMES * length}"), seconds=seconds, asked=asked)
    rows = []
    for case in cases(short, long, length=length, samplers=run.actor.count):
        with learner_held(case.share):
            summary = train(
                name, ["--stop-seconds", str(2 * seconds)], (*sets, *training.ENDLESS, *case.sets)
            )
        trained = summary["trained_steps_per_s"]
        rows.append(
            {
                "sets": " ".join(case.sets),
                "learner_share": round(case.share, 3),
                "predicted_per_s": round(case.predicted),
                "trained_per_s": round(trained),
                "error": round(case.predicted / trained - 1, 3),
            }
        )
        output.parameters(**rows[-1])
    figures = {"run": name, "rows": rows, "worst": max(abs(row["error"]) for row in rows)}
    output.result("plan", figures)
    return figures


def cases(short: Costs, long: Costs, *, length: int, samplers: int) -> Iterator[Case]:
    """Yields what is predicted. `short`, `long`: the costs at this length, and at _TIMES of it."""
    cores = runtime.cores()
    for count in _SAMPLERS:
        rate = short.per_s(cores, "", ranks=1, samplers=count)
        yield Case((f"actor.count={count}",), rate)
    between = at_length(short, long, times=2)
    rate = between.per_s(cores, "", ranks=1, samplers=samplers)
    yield Case((f"unroll.length={2 * length}",), rate)
    rate = short.per_s(cores, "", ranks=1, samplers=samplers)
    for part in _PARTS:
        share = part * rate * short.learner_s
        slower = msgspec.structs.replace(short, learner_s=short.learner_s / share)
        yield Case((), slower.per_s(cores, "", ranks=1, samplers=samplers), share)


@contextlib.contextmanager
def learner_held(share: float) -> Iterator[None]:
    """Lets the learners below this process use no more than that share of a core each."""
    ended = threading.Event()
    thread = threading.Thread(target=_hold, args=(share, ended), name="hold")
    if share < 1:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if share < 1:
            thread.join()


def _hold(share: float, ended: threading.Event) -> None:
    """Stops each learner while it has used more of its time than it was given, until the end."""
    begun: dict[int, tuple[float, float]] = {}  # by process: when, and what it had used
    looked_at = 0.0
    while not ended.wait(_LOOK_EVERY_S):
        if time.monotonic() > looked_at + 1.0:
            looked_at = time.monotonic()
            begun = {pid: begun.get(pid) or (looked_at, used_s(pid)) for pid in _learners()}
        for pid, (began, used) in begun.items():
            left = share * (time.monotonic() - began) - (used_s(pid) - used)
            _signal(pid, signal.SIGCONT if left > 0 else signal.SIGSTOP)
    for pid in begun:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def used_s(pid: int) -> float:
    """Returns the processor seconds of another process, by its clock (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0  # it has ended


def _learners() -> list[int]:
    found = []
    for pid in memory_use.with_descendants(os.getpid()):
        with contextlib.suppress(OSError):  # ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().strip() == "learner":
                found.append(pid)
    return found


def at_length(short: Costs, long: Costs, *, times: float) -> Costs:
    """Returns the costs of unrolls `times` as long: a cost of each unroll is shared by its steps,
    so each is a line over 1 / length."""
    weight = (1 / times - 1 / _TIMES) / (1 - 1 / _TIMES)  # of the short ones

    def mean(part: str) -> float:
        one, other = getattr(short, part), getattr(long, part)
        return float(weight * one + (1 - weight) * other)

    return Costs(
        sampler_s=mean("sampler_s"),
        learner_s=mean("learner_s"),
        broker_s=mean("broker_s"),
        busy=mean("busy"),
    )
