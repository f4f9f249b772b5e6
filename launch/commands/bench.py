"""The command that measures: bench."""

import argparse
from collections.abc import Callable, Sequence

from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.config import run_file
from headrace.launch.process import runtime

NAMES = (
    "broker",
    "throughput",
    "vector",
    "solve",
    "lockstep",
    "balance",
    "cpus",
    "atari",
    "curve",
    "crowd",
    "sampler",
    "lag",
    "learn",
    "learner",
    "acting",
    "population",
    "plan",
    "all",
)
# Which benchmarks take what; the others compare what they set themselves.
_FOR = {
    "--set": ("sampler", "lag", "learn", "plan"),
    "--runs": ("learn",),
    "a name": ("sampler", "learn", "learner", "acting", "crowd", "lag", "plan"),
}


def _bench_arguments(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("what", choices=NAMES, help="which benchmark")
    bench.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"sampler, plan: {shared.RUNS}; learn: which gates, default: every one; learner: which"
        " networks, default: every one; crowd: how many, nodes, brokers, bytes of weights, groups,"
        " unrolls of a step; lag: a run, how many seeds, and lags; acting: a network, how many"
        " samplers, and rows of each",
    )
    told = "learn: so many runs of each gate, seeds 1 to N; default: the gate's own seeds"
    bench.add_argument("--runs", type=shared.count, default=0, metavar="N", help=told)
    shared.sets(bench)


def _bench(given: argparse.Namespace) -> int:
    """Measures one thing, or all that are not too long."""
    from headrace.launch.bench import acting, plan, sampler
    from headrace.launch.bench.gates import learning_gates
    from headrace.launch.bench.lag import lag
    from headrace.launch.bench.learner import learner, population

    for option, value in (("--set", given.set), ("--runs", given.runs), ("a name", given.names)):
        if value and given.what not in _FOR[option]:
            raise run_file.ConfigError(
                f"headrace bench {given.what}: {option} is for {', '.join(_FOR[option])} only"
            )
    if given.what in ("sampler", "plan"):
        if len(given.names) != 1:
            shipped = ", ".join(run_file.shipped())
            raise run_file.ConfigError(
                f"headrace bench {given.what} RUN: name the run, one of {shipped}"
            )
        (sampler if given.what == "sampler" else plan).bench(given.names[0], given.set)
    elif given.what == "lag":
        lag.bench(given.names, given.set)
    elif given.what == "learner":
        learner.bench(given.names)
    elif given.what == "acting":
        acting.bench(given.names)
    elif given.what == "population":
        population.bench()
    elif given.what == "learn":  # too long to be one of "all"
        learning_gates.bench(given.names, given.runs, given.set)
    else:
        for name, measure in _quick(given.names).items():
            if given.what in (name, "all"):
                measure()
    return runtime.OK


def _quick(names: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Returns the benchmarks that `headrace bench all` runs, one after the other."""
    from headrace.launch.bench import broker, crowd, encryption, lockstep, trainings

    return {
        "broker": broker.bench,
        "throughput": lambda: trainings.throughput("make"),
        "vector": lambda: trainings.throughput("vector"),
        "solve": trainings.solve,
        "lockstep": lambda: [lockstep.bench(run) for run in lockstep.RUNS],
        "balance": lockstep.balance,
        "cpus": lockstep.cpus,
        "atari": lambda: trainings.throughput("atari"),
        "curve": encryption.bench,
        "crowd": lambda: crowd.bench(*crowd.size_of(names)),
    }


BENCH = Command("measure; one JSON line each", _bench_arguments, _bench)
