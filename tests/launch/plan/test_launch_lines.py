"""The lines that start a run on the machines of a plan."""

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
