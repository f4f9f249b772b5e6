"""Machines for a goal, and which part forbids one."""

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import choose_mix
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.machines import Machine
from tests.launch.plan.test_cheapest import METAL, PLAIN, XLARGE

COSTS = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=2e-6, gpus={"T4": 50_000.0})


def test_a_learner_on_a_core_where_that_is_enough() -> None:
    choice = choose_mix.choose(COSTS, [XLARGE, PLAIN], 1000)
    assert (choice.gpu, choice.ranks) == ("", 1)
    assert choice.mix == {XLARGE: 1}, "its price is the lowest, GPU or not"
    assert choice.per_s >= 1000
    assert choose_mix.bound(COSTS, choice) == "cores"


def test_gpus_where_it_is_not() -> None:
    choice = choose_mix.choose(COSTS, [METAL, XLARGE, PLAIN], 100_000)
    assert (choice.gpu, choice.ranks) == ("T4", 2)
    assert sum(machine.gpus * count for machine, count in choice.mix.items()) >= 2
    assert choice.per_s >= 100_000
    assert choice.single is None, "none has so many cores"


def test_without_a_goal_the_cheapest_step_decides() -> None:
    choice = choose_mix.choose(COSTS, [METAL, XLARGE, PLAIN], None)
    core = choose_mix.choose(COSTS, [METAL, XLARGE, PLAIN], 1 / COSTS.learner_s)
    assert choice.per_billion <= core.per_billion
    used = choose_mix.parts(COSTS, choice)
    assert max(used.values()) == pytest.approx(1.0, abs=0.01), "one rank is kept busy"


@pytest.mark.parametrize(
    ("rate", "gpus", "machines", "words"),
    [
        (600_000, {"T4": 5e4}, [METAL], "the broker takes 500,000 at most"),
        (90_000, {}, [METAL], "a learner on a core trains 10,000; .* GPUs in the prices: T4"),
        (90_000, {"H100": 5e5}, [PLAIN], "GPUs in the prices: none"),
        (400_000, {"T4": 1000.0}, [METAL], "need over 128 GPUs"),
    ],
)
def test_what_forbids_a_goal_is_named(
    rate: float, gpus: dict[str, float], machines: list[Machine], words: str
) -> None:
    one = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=2e-6, gpus=gpus)
    with pytest.raises(ConfigError, match=words):
        choose_mix.choose(one, machines, rate)


def test_more_brokers_where_one_is_too_slow() -> None:
    choice = choose_mix.choose(COSTS, [METAL, PLAIN], 1_200_000, range(1, 9))
    assert choice.brokers == 3
    assert choice.per_s >= 1_200_000
    assert choose_mix.parts(COSTS, choice)["broker"] == pytest.approx(0.8, abs=0.01)
    with pytest.raises(ConfigError, match="2 brokers take 1,000,000 at most"):
        choose_mix.choose(COSTS, [METAL, PLAIN], 1_200_000, range(1, 3))


def test_as_many_brokers_as_the_run_says() -> None:
    choice = choose_mix.choose(COSTS, [METAL, PLAIN], 100_000, range(4, 9))
    assert choice.brokers == 4


def test_without_a_goal_brokers_are_added_until_the_rank_never_waits() -> None:
    quick = Costs(sampler_s=1e-4, learner_s=1e-2, broker_s=5e-5, gpus={"T4": 50_000.0})
    one = choose_mix.choose(quick, [METAL, PLAIN], None)
    more = choose_mix.choose(quick, [METAL, PLAIN], None, range(1, 9))
    assert (one.brokers, more.brokers) == (1, 3)
    assert more.per_s > 2 * one.per_s


def test_samplers_leave_a_core_to_each_rank() -> None:
    choice = choose_mix.choose(COSTS, [METAL], 60_000)
    assert choose_mix.samplers_on(METAL, choice, COSTS) == 96 - 2
    assert choose_mix.samplers_on(PLAIN, choice, COSTS) == 8
    assert choose_mix.samplers(choice, COSTS) == 94


def test_a_core_without_memory_for_a_sampler_does_not_count() -> None:
    small = Machine("small", 8, 0.1, memory_gib=0.5)
    heavy = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=0.0, sampler_mib=100.0)
    choice = choose_mix.choose(heavy, [small], 4000)
    ((machine, count),) = choice.mix.items()
    assert (machine.vcpus, count) == (5, 1)
    assert choose_mix.samplers(choice, heavy) == 5
