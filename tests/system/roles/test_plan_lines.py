"""The lines that a plan prints start its run: on one machine, with two ranks or two brokers there,
on two machines; a measurement that is left leaves nothing."""

import functools
import shlex

import pytest

from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.launch_lines import launch_lines
from headrace.launch.plan.machines import Machine
from tests import ports
from tests.system.conftest import Place, Process, until

pytestmark = pytest.mark.slow

COSTS = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=0.0)
LAPTOP = Machine("laptop", 1, 0.01)
GPU = Machine("gpu", 2, 0.1, gpu="L4", gpus=1)
SERVER = Machine("server", 3, 0.1, gpu="L4", gpus=2)
CASES = {
    "laptop": Choice({LAPTOP: 1}, "", 1, 1.0, None),
    "workstation": Choice({GPU: 1}, "L4", 1, 1.0, None),
    "two ranks": Choice({SERVER: 1}, "L4", 2, 1.0, None),
    "two machines": Choice({GPU: 2}, "L4", 2, 1.0, None),
    "two brokers": Choice({LAPTOP: 1}, "", 1, 1.0, None, brokers=2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_lines_of_a_plan_start_its_run(place: Place, case: str) -> None:
    choice = CASES[case]
    sets = ["stop.return=none", "stop.steps=2000"]
    if choice.brokers > 1:
        sets += ["broker.shards=2", "pacing.batch_unrolls=2"]
    given = list(launch_lines(place.run, sets, COSTS, choice, host="127.0.0.1"))
    taken = [(f":{old}", f":{ports.free()}") for old in (5755, 5757, 29500)]
    learners: list[Process] = []
    nodes: list[Process] = []
    for line in given:
        words = shlex.split(functools.reduce(lambda text, at: text.replace(*at), taken, line))
        # All machines are this one: what is on each of two is started twice.
        if "torchrun" in line:
            hosts = int(words[words.index("--nnodes") + 1])
            learners += [place.module(words[2], *words[3:]) for _ in range(hosts)]
        elif words[:2] == ["headrace", "keygen"]:
            assert place.headrace(*words[1:]).ends() == 0
        elif words[:2] == ["headrace", "learner"]:
            learners.append(place.headrace(*words[1:]))
        elif words[:2] == ["headrace", "broker"]:
            place.headrace(*words[1:])
        elif words[0] == "headrace":
            nodes.append(place.headrace(*words[1:]))
    assert nodes
    assert [one.ends() for one in learners] == [0] * len(learners)
    assert [one.ends() for one in nodes] == [0] * len(nodes)


def test_a_measurement_that_is_left_leaves_nothing(place: Place) -> None:
    plan = place.headrace("plan", place.run, "--seconds", "1000", cold=True)
    plan.says("trains here for about")
    until(lambda: any("cli train" in words for words in place.alive().values()), "it trains")
    assert plan.term() == 3
    place.nothing_is_left()
    assert not list(place.temporary.glob("headrace-plan-*"))
