"""Finds the cheapest machines that together have enough GPUs of one kind, and enough cores.

    f[0][v]   price of v cores on machines of any kind        (cores cover, GPUs do not count)
    f[g][v]   price of g GPUs and v cores: some machine has GPUs; take away each kind in turn

Exact: every choice of machines that is enough is one way through this table. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.launch.plan.machines import Machine

Floats = NDArray[np.float64]
Mix = Mapping[Machine, int]  # how many of each kind

MOST_CORES, MOST_GPUS = 60_000, 128  # one table holds no more


def price(mix: Mix) -> float:
    """Returns the dollars an hour."""
    return sum(machine.price * count for machine, count in mix.items())


def cheapest(machines: Sequence[Machine], *, gpu: str, gpus: int, cores: int) -> Mix | None:
    """Returns the cheapest mix with so many GPUs of that kind and so many cores; None = there is
    none: no machine, or none with such a GPU."""
    with_gpu = [one for one in machines if one.gpu == gpu and one.gpus]
    if not machines or (gpus and not with_gpu):
        return None
    table = [_by_cores(_useful(machines), cores)]
    table += [np.empty(0)] * gpus
    for need in range(1, gpus + 1):
        table[need] = np.min([_with(one, table, need) for one in with_gpu], axis=0)
    return _way_back(table, machines, with_gpu, gpus=gpus, cores=cores)


def smallest_single(
    machines: Sequence[Machine], *, gpu: str, gpus: int, cores: int
) -> Machine | None:
    """Returns the cheapest machine that is enough by itself; None = none is."""
    enough = [
        one
        for one in machines
        if one.vcpus >= cores and (not gpus or (one.gpu == gpu and one.gpus >= gpus))
    ]
    return min(enough, key=lambda one: one.price, default=None)


def _useful(machines: Sequence[Machine]) -> list[Machine]:
    """Returns those without a cheaper one of as many cores."""
    found: list[Machine] = []
    for one in sorted(machines, key=lambda one: (one.price, -one.vcpus)):
        if all(one.vcpus > other.vcpus for other in found):
            found.append(one)
    return found


def _by_cores(machines: Sequence[Machine], cores: int) -> Floats:
    prices = np.zeros(cores + 1)
    for need in range(1, cores + 1):
        prices[need] = min(one.price + prices[max(0, need - one.vcpus)] for one in machines)
    return prices


def _with(one: Machine, table: Sequence[Floats], gpus: int) -> Floats:
    """Returns the price by cores where one of these is among them."""
    rest = table[max(0, gpus - one.gpus)]
    covered = np.maximum(np.arange(len(rest)) - one.vcpus, 0)
    prices: Floats = one.price + rest[covered]
    return prices


def _way_back(
    table: Sequence[Floats],
    machines: Sequence[Machine],
    with_gpu: Sequence[Machine],
    *,
    gpus: int,
    cores: int,
) -> Mix:
    """Returns the machines on the way that the table's last price took."""
    mix: Counter[Machine] = Counter()
    while gpus or cores:
        chosen = min(
            with_gpu if gpus else machines,
            key=lambda one: one.price + table[max(0, gpus - one.gpus)][max(0, cores - one.vcpus)],
        )
        if gpus:
            gpus = max(0, gpus - chosen.gpus)
        cores = max(0, cores - chosen.vcpus)
        mix[chosen] += 1
    return mix
