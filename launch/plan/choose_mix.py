"""Chooses machines for a number of steps a second, and says what each part of them is used for.
Pure."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import cheapest
from headrace.launch.plan.cheapest import MOST_CORES, MOST_GPUS, Mix
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.machines import Machine

ONE_BROKER = range(1, 2)
_BILLION = 1e9


@dataclass(frozen=True, slots=True)
class Choice:
    """Holds machines that are enough for a goal."""

    mix: Mix
    gpu: str  # that learners train on; "" = a core
    ranks: int
    per_s: float  # steps that it is predicted to train in a second
    single: Machine | None  # the cheapest machine that would do it alone; None = none would
    brokers: int = 1

    @property
    def price(self) -> float:
        """Returns the dollars an hour."""
        return cheapest.price(self.mix)

    @property
    def per_billion(self) -> float:
        """Returns the dollars for 1e9 steps."""
        return self.price / 3600 / self.per_s * _BILLION

    @property
    def cores(self) -> int:
        """Returns the cores of all machines."""
        return sum(machine.vcpus * count for machine, count in self.mix.items())


def choose(
    costs: Costs, machines: Sequence[Machine], rate: float | None, brokers: range = ONE_BROKER
) -> Choice:
    """Returns the cheapest choice for a rate; None = for each device what keeps one rank busy, and
    of those the cheapest step. `brokers`: how many there may be. ConfigError says which part
    forbids it."""
    machines = [_usable(one, costs) for one in machines]
    devices = ["", *(name for name in costs.gpus if any(one.gpu == name for one in machines))]
    found = [one for gpu in devices if (one := _for_device(costs, machines, rate, gpu, brokers))]
    if not found:
        raise ConfigError(_forbidden(costs, machines, rate, brokers[-1]))
    key = (lambda one: one.price) if rate else (lambda one: one.per_billion)
    return min(found, key=key)


def parts(costs: Costs, choice: Choice) -> dict[str, float]:
    """Returns the share of each part that the predicted rate uses."""
    ranks_per_s = choice.ranks * costs.learner_per_s(choice.gpu)
    return {
        "cores": costs.cores(choice.per_s, choice.gpu) / choice.cores,
        "learner": choice.per_s / ranks_per_s,
        "broker": choice.per_s / costs.broker_per_s() / choice.brokers,
    }


def bound(costs: Costs, choice: Choice) -> str:
    """Returns the part that bounds the rate."""
    used = parts(costs, choice)
    return max(used, key=lambda name: used[name])


def samplers_on(machine: Machine, choice: Choice, costs: Costs) -> int:
    """Returns the samplers of one such machine: one for each core that no learner rank needs."""
    ranks = min(machine.gpus, choice.ranks) if choice.gpu and machine.gpu == choice.gpu else 0
    return max(0, machine.vcpus - math.ceil(ranks * costs.host_cores))


def _usable(machine: Machine, costs: Costs) -> Machine:
    """Returns the machine with as many cores as have memory for a sampler each, at least one."""
    if not (costs.sampler_mib and machine.memory_gib):
        return machine
    most = max(1, int(machine.memory_gib * 1024 / costs.sampler_mib))
    return dataclasses.replace(machine, vcpus=min(machine.vcpus, most))


def samplers(choice: Choice, costs: Costs) -> int:
    """Returns the samplers of all machines."""
    return sum(count * samplers_on(machine, choice, costs) for machine, count in choice.mix.items())


def _for_device(
    costs: Costs, machines: Sequence[Machine], rate: float | None, gpu: str, brokers: range
) -> Choice | None:
    """Returns the cheapest choice that trains on that device; None = it cannot be so fast."""
    wanted = rate or min(costs.learner_per_s(gpu), brokers[-1] * costs.broker_per_s())
    if not gpu and wanted > costs.learner_per_s("") * (1 + 1e-9):  # one rank, on one core
        return None
    count = max(brokers[0], costs.brokers(wanted))
    if count not in brokers:
        return None
    ranks, cores = costs.ranks(wanted, gpu), math.ceil(round(costs.cores(wanted, gpu), 6))
    gpus = ranks if gpu else 0
    if gpus > MOST_GPUS or cores > MOST_CORES:
        return None
    mix = cheapest.cheapest(machines, gpu=gpu, gpus=gpus, cores=cores)
    if mix is None:
        return None
    have = sum(machine.vcpus * count for machine, count in mix.items())
    return Choice(
        mix=mix,
        gpu=gpu,
        ranks=ranks,
        per_s=costs.per_s(have, gpu, ranks=ranks, brokers=count),
        single=cheapest.smallest_single(machines, gpu=gpu, gpus=gpus, cores=cores),
        brokers=count,
    )


def _forbidden(costs: Costs, machines: Sequence[Machine], rate: float | None, brokers: int) -> str:
    """Returns why no choice is enough."""
    wanted = rate or 0.0
    if costs.brokers(wanted) > brokers:
        one = brokers == 1
        return (
            f"{wanted:,.0f} steps/s: {'the broker takes' if one else f'{brokers} brokers take'}"
            f" {brokers * costs.broker_per_s():,.0f} at most, as each has one core; longer unrolls"
            " cost it less for each step" + "; several need a pacing.max_lag of 1 or more" * one
        )
    offered = sorted({one.gpu for one in machines if one.gpu})
    if not any(gpu in offered for gpu in costs.gpus):
        kinds = ", ".join(offered[:6]) or "none"
        return (
            f"{wanted:,.0f} steps/s: a learner on a core trains {costs.learner_per_s(''):,.0f};"
            f" say what one GPU trains, --gpu NAME=STEPS_PER_S; GPUs in the prices: {kinds}"
        )
    return (
        f"{wanted:,.0f} steps/s need over {MOST_GPUS} GPUs or {MOST_CORES:,} cores: more than this"
        " plans for"
    )
