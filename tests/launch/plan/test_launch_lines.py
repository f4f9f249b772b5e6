"""The lines that start a run on the machines of a plan."""

import dataclasses

import pytest

from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.launch_lines import launch_lines, learner_places
from headrace.launch.plan.machines import Machine
from tests.launch.plan.test_cheapest import METAL, PLAIN, XLARGE

COSTS = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=0.0)


def choice(mix: dict[Machine, int], *, gpu: str = "T4", ranks: int = 1) -> Choice:
    return Choice(mix=mix, gpu=gpu, ranks=ranks, per_s=1.0, single=None)


def test_one_rank_needs_no_torchrun() -> None:
    lines = list(launch_lines("mine.toml", ["a.b=1"], COSTS, choice({XLARGE: 1}), host="h"))
    assert lines == [
        "# on the first machine",
        "headrace keygen keys",
        "headrace broker --run mine.toml --bind tcp://h:5755 --set security.curve=true --set a.b=1",
        "headrace learner --run mine.toml --broker tcp://h:5755 --key keys/learner.key --set a.b=1",
        "# on each g4dn.xlarge",
        "headrace node --broker tcp://h:5755 --key keys/actor.key --samplers 3",
    ]


def test_ranks_take_the_largest_machines_first_and_use_all_their_gpus() -> None:
    places = learner_places(choice({XLARGE: 3, PLAIN: 2, METAL: 1}, ranks=10))
    assert list(places) == [(METAL, 1, 8), (XLARGE, 2, 1)], "the third has no rank"


@pytest.mark.parametrize(
    ("ranks", "places"),
    [
        (20, [(METAL, 2, 8), (METAL, 1, 4)]),
        (24, [(METAL, 3, 8)]),
        (25, [(METAL, 3, 8), (XLARGE, 1, 1)]),
        (3, [(METAL, 1, 3)]),
    ],
)
def test_a_gpu_that_is_not_needed_has_no_rank(
    ranks: int, places: list[tuple[Machine, int, int]]
) -> None:
    """So that a batch, a multiple of the ranks that are planned for, can be shared by them."""
    assert list(learner_places(choice({METAL: 3, XLARGE: 2}, ranks=ranks))) == places


def test_several_brokers_stand_one_behind_the_other_on_the_first_machine() -> None:
    several = dataclasses.replace(choice({XLARGE: 1}), brokers=2)
    lines = list(launch_lines("mine.toml", ["broker.shards=2"], COSTS, several, host="h"))
    given = "--set security.curve=true --set broker.shards=2"
    assert lines[2:4] == [
        f"headrace broker --run mine.toml --bind tcp://h:5755 {given}",
        f"headrace broker --run mine.toml --shard 1 --bind tcp://h:5757 {given}",
    ]
    assert all("--broker tcp://h:5755,tcp://h:5757 " in line for line in (lines[4], lines[6]))


def test_each_kind_of_machine_has_its_own_torchrun_line() -> None:
    lines = list(launch_lines("r", [], COSTS, choice({METAL: 1, XLARGE: 2}, ranks=9), host="h"))
    torchruns = [line for line in lines if "torchrun" in line]
    assert len(torchruns) == 2
    assert all("--nnodes 2 " in line for line in torchruns)
    assert ["--nproc-per-node 8 " in line for line in torchruns] == [True, False]
    assert "# on 1 of g4dn.xlarge" in lines


def test_a_machine_whose_cores_are_all_a_learners_has_no_node() -> None:
    small = Machine("small", 1, 0.1, gpu="T4", gpus=1)
    lines = list(launch_lines("r", [], COSTS, choice({small: 1, PLAIN: 1}), host="h"))
    assert "# on each small" not in lines
    assert lines[-1].endswith("--samplers 8")
