"""`headrace plan RUN`: the cheapest machines for a run, what bounds them, and how to start it
there."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.broker import durable
from headrace.broker.config import MOST_BROKERS
from headrace.launch.config import run_file
from headrace.launch.plan import choose_mix, far_line, machines, measure, picture
from headrace.launch.plan import costs as run_costs
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.far_line import Line
from headrace.launch.plan.launch_lines import launch_lines
from headrace.launch.plan.machines import Machine
from headrace.launch.process import logs, runtime
from headrace.launch.writing import writing


@dataclass(frozen=True, slots=True)
class Asked:
    """Holds what the command line asks for."""

    prices: Path | None = None  # None = only what this machine reaches
    costs: Path | None = None  # None = they are measured here
    seconds: float = 10.0  # of the measurement
    gpus: Mapping[str, float] | None = None  # steps a second that one of each trains
    only: Sequence[str] = ()  # machines to choose from; () = all
    spot: bool = False
    region: str = ""
    rate: float | None = None  # steps a second
    line: Line = field(default_factory=Line)  # of each machine that plays
    host: str = "10.0.0.1"  # of the broker, in the lines that start it
    to: Path | None = None  # the figures as JSON
    picture: Path | None = None  # what other rates cost, as SVG


def plan(name: str, sets: Sequence[str], asked: Asked) -> int:
    """Prints the plan; returns the exit status."""
    run = run_file.load(name, sets)
    offered = _offered(asked)  # what is wrong with it is said before anything is measured
    logs.start("plan")
    if asked.costs is None:
        stop = runtime.StopRequested()
        try:
            costs = measure.measure(name, sets, seconds=asked.seconds, asked=stop)
        except measure.LeftError:
            return runtime.LIMIT
    else:
        costs = run_costs.read(asked.costs)
    costs = run_costs.with_gpus(costs, asked.gpus or {})
    far_line.check(asked.line, costs)
    told = list(_costs_words(costs))
    told += [_here_words(costs, run.actor.count)] * (asked.costs is None)
    figures: dict[str, Any] = {"costs": msgspec.to_builtins(costs)}
    if offered:
        brokers = _brokers(run)
        choice = choose_mix.choose(costs, offered, asked.rate, brokers)
        batch = batch_unrolls(run, costs, choice, asked.line)
        told += _choice_words(costs, choice, asked.rate)
        told += far_line.words(asked.line, run, costs, choice, batch)
        told += _setting_words(run, costs, choice, batch)
        if choice.brokers != run.broker.shards:
            sets = (*sets, f"broker.shards={choice.brokers}")
        if batch != run.pacing.batch_unrolls:
            sets = (*sets, f"pacing.batch_unrolls={batch}")
        told += ["", *launch_lines(name, sets, costs, choice, host=asked.host)]
        figures |= _figures(costs, choice, asked.rate)
        if asked.picture is not None:
            rate = asked.rate or choice.per_s
            _write(asked.picture, picture.draw(costs, offered, choice, rate, brokers))
    print("\n".join(told))  # noqa: T201
    if asked.to is not None:
        _write(asked.to, json.dumps(figures, indent=2) + "\n")
    return runtime.OK


def _write(to: Path, text: str) -> None:
    with writing(to):
        durable.write(to, text)


def _brokers(run: run_file.Run) -> range:
    """Returns how many brokers the run may have; it says how many at least."""
    most = MOST_BROKERS if run.pacing.max_lag else 1
    return range(run.broker.shards, most + 1)


def _offered(asked: Asked) -> list[Machine]:
    if asked.prices is None:
        if asked.rate or asked.only or asked.picture or asked.line != Line():
            raise run_file.ConfigError(
                "a goal, a line, --machine and --picture need machines: --prices"
            )
        return []
    found = machines.read(asked.prices, spot=asked.spot, region=asked.region)
    chosen = machines.named(found, asked.only)
    if unknown := sorted((asked.gpus or {}).keys() - {one.gpu for one in chosen}):
        raise run_file.ConfigError(f"--gpu {unknown[0]}: no machine to choose from has one")
    return chosen


def _costs_words(costs: Costs) -> Iterator[str]:
    parts = {"sampler": costs.sampler_s, "learner": costs.learner_s, "broker": costs.broker_s}
    words = ", ".join(f"{part} {_micro(cost)} us" for part, cost in parts.items())
    yield f"a step      {words} of a core; of a full machine's cores {costs.busy:.0%} work"
    for gpu, rate in costs.gpus.items():
        yield f"a GPU       {gpu} trains {rate:,.0f} steps/s, as was said"


def _here_words(costs: Costs, samplers: int) -> str:
    """Says what this machine reaches, where the costs are of it."""
    cores = runtime.cores()
    here = costs.per_s(cores, "", ranks=1, samplers=samplers)
    played = "1 sampler" if samplers == 1 else f"{samplers} samplers"
    return f"here        {here:,.0f} steps/s by {played} on {cores} cores"


def _micro(seconds: float) -> str:
    micro = 1e6 * seconds
    return f"{micro:,.0f}" if micro >= 100 else f"{micro:.3g}"


def _choice_words(costs: Costs, choice: Choice, rate: float | None) -> Iterator[str]:
    for number, (machine, count) in enumerate(choice.mix.items()):
        has = f"{machine.vcpus} cores" + (f", {machine.gpus} {machine.gpu}" if machine.gpu else "")
        samplers = choose_mix.samplers_on(machine, choice, costs)
        yield (
            f"{'' if number else 'machines':12}{count} x {machine.name} ({has}; {samplers}"
            f" samplers) at ${machine.price:.4g}/h"
        )
    device = f"{choice.ranks} on {choice.gpu}" if choice.gpu else "on a core"
    yield f"learner     {device}"
    if choice.brokers > 1:
        yield f"brokers     {choice.brokers} on the first machine, a core each"
    yield f"price       ${choice.price:.4f}/h, ${choice.per_billion:.4g} for 1e9 steps"
    if choice.single and choice.single not in choice.mix:
        times = choice.single.price / choice.price
        yield (
            f"            {times:.2f} times less than one machine for all, {choice.single.name}"
            f" at ${choice.single.price:.4f}/h"
        )
    used = choose_mix.parts(costs, choice)
    words = ", ".join(f"{part} {share:.0%}" for part, share in used.items())
    goal = f" for a goal of {rate:,.0f}" if rate else ""
    yield f"predicted   {choice.per_s:,.0f} steps/s{goal}; used: {words}"


def batch_unrolls(run: run_file.Run, costs: Costs, choice: Choice, line: Line) -> int:
    """Returns the unrolls of a version with which each that is played or on its way has a place,
    and each rank its part, one of each of several brokers at least; what the run has, where that is
    enough."""
    places, has = run.pacing.max_lag + 1, run.pacing.batch_unrolls
    streams = choose_mix.samplers(choice, costs) * run.actor.groups
    needed = line.places(streams, far_line.unroll_s(run, costs))
    shared = choice.brokers * choice.ranks if choice.brokers > 1 else 1
    least = max(has, math.ceil(needed / places), shared)
    return math.ceil(least / choice.ranks) * choice.ranks


def _setting_words(run: run_file.Run, costs: Costs, choice: Choice, needed: int) -> Iterator[str]:
    if choice.brokers != run.broker.shards:
        yield f"setting     broker.shards={choice.brokers} for {run.broker.shards}"
    has = run.pacing.batch_unrolls
    if needed > has:
        samplers = choose_mix.samplers(choice, costs)
        yield (
            f"setting     pacing.batch_unrolls={needed} for {has}: a place for the unrolls of"
            f" {samplers} samplers, and a version {needed / has:.3g} times as large; that may want"
            " another step size"
        )


def _figures(costs: Costs, choice: Choice, rate: float | None) -> dict[str, Any]:
    return {
        "goal_per_s": rate,
        "predicted_per_s": round(choice.per_s, 1),
        "bound": choose_mix.bound(costs, choice),
        "used": {k: round(share, 4) for k, share in choose_mix.parts(costs, choice).items()},
        "brokers": choice.brokers,
        "learner": {"ranks": choice.ranks, "device": choice.gpu or "cpu"},
        "machines": [
            {
                "name": machine.name,
                "count": count,
                "price_per_h": machine.price,
                "samplers": choose_mix.samplers_on(machine, choice, costs),
            }
            for machine, count in choice.mix.items()
        ],
        "price_per_h": round(choice.price, 6),
        "price_per_1e9_steps": round(choice.per_billion, 4),
        "one_machine": choice.single
        and {"name": choice.single.name, "price_per_h": choice.single.price},
    }
