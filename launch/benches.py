"""Runs what `headrace bench` was asked for."""

from collections.abc import Callable, Sequence

from headrace.launch.config import run_file
from headrace.launch.process import runtime

NAMES = (
    "broker",
    "throughput",
    "vector",
    "solve",
    "lockstep",
    "balance",
    "atari",
    "curve",
    "crowd",
    "sampler",
    "lag",
    "learn",
    "all",
)


def bench(what: str, names: Sequence[str], sets: Sequence[str], *, runs: int) -> int:
    """Measures one thing, or all that are not too long; `runs`: of each learning gate."""
    from headrace.launch.bench import (
        broker,
        crowd,
        encryption,
        lockstep,
        sampler,
        solve,
        throughput,
    )
    from headrace.launch.bench.gates import learning_gates
    from headrace.launch.bench.lag import lag

    benches: dict[str, Callable[[], object]] = {
        "broker": broker.bench,
        "throughput": lambda: throughput.bench("make"),
        "vector": lambda: throughput.bench("vector"),
        "solve": solve.bench,
        "lockstep": lambda: [lockstep.bench(run) for run in lockstep.RUNS],
        "balance": lockstep.balance,
        "atari": lambda: throughput.bench("atari"),
        "curve": encryption.bench,
        "crowd": lambda: crowd.bench(crowd.size_of(names)),
    }
    if what == "sampler":
        if len(names) != 1:
            raise run_file.ConfigError(
                f"headrace bench sampler RUN: name the run, one of {', '.join(run_file.shipped())}"
            )
        sampler.bench(names[0], sets)
    elif what == "lag":
        lag.bench(names, sets)
    elif what == "learn":  # too long to be one of "all"
        learning_gates.bench(names, runs)
    else:
        for name, measure in benches.items():
            if what in (name, "all"):
                measure()
    return runtime.OK
