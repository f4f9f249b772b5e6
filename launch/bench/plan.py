"""Tells how far off `headrace plan` is: predicts runs that were not measured, and trains them.

Measured are the run as it is, and with unrolls four times as long; predicted are other numbers of
samplers, and unrolls twice as long.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headrace.launch.bench import output
from headrace.launch.bench.train_command import train
from headrace.launch.comparison import training
from headrace.launch.config import run_file
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.measure import measure
from headrace.launch.process import runtime

_SAMPLERS = (1, 2, 4)
_TIMES = 4  # as long as the run's are the longer unrolls


class Case(NamedTuple):
    """Holds a run to predict."""

    sets: tuple[str, ...]
    predicted: float  # steps a second


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
        summary = train(
            name, ["--stop-seconds", str(2 * seconds)], (*sets, *training.ENDLESS, *case.sets)
        )
        trained = summary["trained_steps_per_s"]
        rows.append(
            {
                "sets": " ".join(case.sets),
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
