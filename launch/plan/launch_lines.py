"""Writes the lines that start a run on the machines of a plan. Pure."""

from collections.abc import Iterator, Sequence

from headrace.broker.transport import several
from headrace.launch.plan import choose_mix
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.machines import Machine

_PORT, _RENDEZVOUS_PORT = 5755, 29500


def launch_lines(
    name: str, sets: Sequence[str], costs: Costs, choice: Choice, *, host: str
) -> Iterator[str]:
    """Yields each line, after one that says on which machines."""
    first, given = f"tcp://{host}:{_PORT}", "".join(f" --set {one}" for one in sets)
    broker = several.of_run(first, choice.brokers)
    yield "# on the first machine"
    yield "headrace keygen keys"
    for shard, bind in enumerate(several.addresses(broker)):
        which = f" --shard {shard}" if shard else ""
        yield f"headrace broker --run {name}{which} --bind {bind} --set security.curve=true{given}"
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
    those with the most GPUs first. A machine may have one that is not needed."""
    left = choice.ranks
    kinds = [machine for machine in choice.mix if machine.gpu == choice.gpu and machine.gpus]
    for machine in sorted(kinds, key=lambda one: -one.gpus):
        count = choice.mix[machine]
        full, rest = min(count, left // machine.gpus), left % machine.gpus
        for machines, each in ((full, machine.gpus), (int(full < count and rest > 0), rest)):
            if machines:
                yield machine, machines, each
                left -= machines * each
