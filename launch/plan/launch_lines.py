"""Writes the lines that start a run on the machines of a plan. Pure."""

import math
from collections.abc import Iterator, Sequence

from headrace.launch.plan import choose_mix
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.machines import Machine

_PORT, _RENDEZVOUS_PORT = 5755, 29500


def launch_lines(
    name: str, sets: Sequence[str], costs: Costs, choice: Choice, *, host: str
) -> Iterator[str]:
    """Yields each line, after one that says on which machines."""
    broker, given = f"tcp://{host}:{_PORT}", "".join(f" --set {one}" for one in sets)
    yield "# on the first machine"
    yield "headrace keygen keys"
    yield f"headrace broker --run {name} --bind {broker} --set security.curve=true{given}"
    run = f"{name} --broker {broker} --key keys/learner.key{given}"
    if choice.ranks == 1:
        yield f"headrace learner --run {run}"
    else:
        places = list(learner_places(choice))
        hosts = sum(machines for _, machines, _ in places)
        meet = f"--nnodes {hosts} --rdzv-backend c10d --rdzv-endpoint {host}:{_RENDEZVOUS_PORT}"
        for machine, machines, each in places:
            count = choice.mix[machine]
            of = f"each {machine.name}" if machines == count else f"{machines} of {machine.name}"
            yield f"# on {of}" if hosts > 1 else "# on the first machine"
            yield (
                f"python -m headrace.launch.torchrun {meet} --nproc-per-node {each}"
                f" -m headrace.launch.learner {run}"
            )
    for machine in choice.mix:
        if samplers := choose_mix.samplers_on(machine, choice, costs):
            yield f"# on each {machine.name}"
            yield f"headrace node --broker {broker} --key keys/actor.key --samplers {samplers}"


def learner_places(choice: Choice) -> Iterator[tuple[Machine, int, int]]:
    """Yields kinds of machines, how many of each have learner ranks, and how many ranks each has;
    one that has a GPU more than is needed uses it, too."""
    left = choice.ranks
    kinds = [machine for machine in choice.mix if machine.gpu == choice.gpu and machine.gpus]
    for machine in sorted(kinds, key=lambda one: -one.gpus):
        machines = min(choice.mix[machine], math.ceil(left / machine.gpus))
        if machines > 0:
            yield machine, machines, machine.gpus
        left -= machines * machine.gpus
