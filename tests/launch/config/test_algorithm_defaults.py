"""The defaults of each algorithm: what a run has that says no more than which one."""

from typing import Any

import pytest

from headrace.actors.config import EvaluateConfig
from headrace.launch.config import algorithm_defaults, run_file
from headrace.launch.config.algorithm_defaults import DEFAULTS, Settled
from headrace.learner.config import AlgorithmConfig

PLAIN = run_file.to_dict(run_file.Run())


def of(name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    algorithm = {"name": name, **sections.pop("algorithm", {})}
    return algorithm_defaults.of({**sections, "algorithm": algorithm})


def run_of(**sections: dict[str, Any]) -> run_file.Run:
    """Returns the run of these, by ppo."""
    algorithm = {"name": "ppo", **sections.pop("algorithm", {})}
    return run_file.build({**sections, "algorithm": algorithm}, [], source="bare")


def settled(run: run_file.Run, *, kind: str = "mlp", limit: int = 0, numbers: int = 0) -> Settled:
    return algorithm_defaults.settled(run, kind=kind, limit=limit, numbers=numbers)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_run_that_names_an_algorithm_has_its_table(name: str) -> None:
    run = run_file.build({"algorithm": {"name": name}}, [], source="bare")
    held = run_file.to_dict(run)
    for place, value in of(name).items():
        section, key = place.split(".")
        assert held[section][key] == value, place
    for section, keys in held.items():
        for key, value in keys.items():
            if f"{section}.{key}" not in DEFAULTS[name] and key != "name":
                assert value == PLAIN[section][key], f"{section}.{key}"


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_given_stays(name: str) -> None:
    tables: dict[str, Any] = {"algorithm": {"name": name}}
    for place in DEFAULTS[name]:
        section, key = place.split(".")
        tables.setdefault(section, {})[key] = PLAIN[section][key]
    assert algorithm_defaults.filled(tables) == tables


def test_the_tables_of_the_caller_stay_as_they_are() -> None:
    tables = {"learner": {"lr": 1.0}}
    assert "unroll" in algorithm_defaults.filled(tables)
    assert tables == {"learner": {"lr": 1.0}}


def test_every_place_is_a_key() -> None:
    for table in DEFAULTS.values():
        for place in table:
            section, key = place.split(".")
            assert key in run_file.SECTIONS[section], place


@pytest.mark.parametrize(
    ("length", "envs", "unrolls", "core", "parts"),
    [
        (128, 8, 2, "none", 32),
        (128, 16, 2, "none", 64),
        (64, 1, 1, "none", 1),
        (5, 3, 1, "none", 1),  # fewer steps than a part has
        (128, 8, 2, "lstm", 16),  # not more than columns
        (16, 8, 2, "gru", 4),
    ],
)
def test_ppos_minibatches_have_about_64_steps(
    length: int, envs: int, unrolls: int, core: str, parts: int
) -> None:
    asked = run_of(
        unroll={"length": length, "envs": envs},
        pacing={"batch_unrolls": unrolls},
        model={"core": core},
    )
    assert settled(asked).algorithm.minibatches == parts


@pytest.mark.parametrize(
    ("name", "policies", "unrolls"),
    [
        ("ppo", 0, 2),
        ("ppo", 8, 2),
        ("ppo", 1000, 2),
        ("appo", 0, 1),
        ("appo", 16, 4),
        ("appo", 1000, 4),
        ("impala", 0, 1),
        ("impala", 16, 8),
        ("impala", 1000, 8),
    ],
)
def test_a_batch_has_columns_for_many_policies(name: str, policies: int, unrolls: int) -> None:
    run = run_of(algorithm={"name": name}, env={"id": "CartPole-v1", "population": policies})
    assert run.pacing.batch_unrolls == unrolls
    given = run_of(
        algorithm={"name": name},
        env={"id": "CartPole-v1", "population": policies},
        pacing={"batch_unrolls": 3},
    )
    assert given.pacing.batch_unrolls == 3


@pytest.mark.parametrize(
    ("name", "stack", "policies", "unrolls"),
    [
        ("appo", 1, 0, 1),
        ("appo", 4, 0, 4),
        ("appo", 2, 8, 4),
        ("ppo", 4, 0, 2),
        ("impala", 4, 0, 1),
    ],
)
def test_a_batch_of_appo_has_more_unrolls_of_stacked_frames(
    name: str, stack: int, policies: int, unrolls: int
) -> None:
    env = {"id": "CartPole-v1", "stack": stack, "population": policies}
    assert run_of(algorithm={"name": name}, env=env).pacing.batch_unrolls == unrolls


def test_each_policy_of_a_population_has_parts_of_its_own_columns() -> None:
    run = run_of(env={"id": "CartPole-v1", "population": 8})
    assert settled(run).algorithm.minibatches == 2


@pytest.mark.parametrize(
    ("kind", "lr", "parts"),
    [
        ("mlp", 3e-4, 32),
        ("grid", 1e-3, 8),
        ("nature", 5e-4, 8),
        ("resnet", 5e-4, 8),
        ("mine:Encoder", 3e-4, 32),
    ],
)
def test_ppo_takes_fewer_and_larger_steps_on_pictures(kind: str, lr: float, parts: int) -> None:
    algorithm, learner, _ = settled(run_of(), kind=kind)
    assert (algorithm.minibatches, learner.lr) == (parts, lr)
    given = run_of(algorithm={"minibatches": 4}, learner={"lr": 2e-4})
    algorithm, learner, _ = settled(given, kind=kind)
    assert (algorithm.minibatches, learner.lr) == (4, 2e-4)


@pytest.mark.parametrize(("name", "lr"), [("appo", 1e-3), ("impala", 2e-3)])
def test_a_step_size_that_is_auto_is_their_default(name: str, lr: float) -> None:
    run = run_file.build({"algorithm": {"name": name}}, ["learner.lr=auto"], source="bare")
    assert settled(run).learner.lr == lr


@pytest.mark.parametrize(
    ("limit", "gamma"), [(0, 0.99), (200, 0.99), (999, 0.99), (1000, 0.998), (27_000, 0.998)]
)
def test_a_discount_by_the_length_of_episodes(limit: int, gamma: float) -> None:
    assert settled(run_of(), limit=limit).algorithm.gamma == pytest.approx(gamma)
    given = run_of(algorithm={"gamma": 0.9})
    assert settled(given, limit=limit).algorithm.gamma == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("numbers", "kind", "uses", "entropy", "words"),
    [
        (0, "mlp", 8, 0.003, "choices"),
        (0, "grid", 8, 0.003, "choices"),
        (0, "nature", 2, 0.02, "choices, the network is nature"),
        (0, "resnet", 2, 0.02, "choices, the network is resnet"),
        (1, "mlp", 16, 0.01, "numbers"),
        (1, "nature", 16, 0.01, "numbers"),
    ],
)
def test_appo_takes_as_many_steps_as_actions_and_network_ask_for(
    numbers: int, kind: str, uses: int, entropy: float, words: str
) -> None:
    found = settled(run_of(algorithm={"name": "appo"}), numbers=numbers, kind=kind)
    chosen = found.algorithm
    assert (chosen.uses, chosen.buffer_batches, chosen.target_interval) == (uses, uses, 2 * uses)
    assert chosen.entropy_coef == entropy
    assert f"algorithm.uses is {uses}: actions are {words}" in found.said


@pytest.mark.parametrize(
    ("numbers", "limit", "entropy", "trace"),
    [(0, 1000, 0.01, 0.95), (2, 0, 0.01, 0.95), (2, 999, 0.01, 0.95), (2, 1000, 0.003, 0.97)],
)
def test_ppo_looks_further_where_numbers_act_in_long_episodes(
    numbers: int, limit: int, entropy: float, trace: float
) -> None:
    run = run_file.build({"algorithm": {"name": "ppo"}}, [], source="bare")
    found = settled(run, numbers=numbers, limit=limit)
    assert (found.algorithm.entropy_coef, found.algorithm.trace) == (entropy, trace)
    acts = "numbers" if numbers else "choices"
    known = f"at most {limit} steps" if limit else "no known limit"
    assert f"algorithm.trace is {trace}: actions are {acts}, episodes have {known}" in found.said
    given = run_file.build(
        {"algorithm": {"name": "ppo", "trace": 1.0, "entropy_coef": 0.1}}, [], source="bare"
    )
    chosen = settled(given, numbers=numbers, limit=limit).algorithm
    assert (chosen.entropy_coef, chosen.trace) == (0.1, 1.0)


def test_what_follows_from_uses_follows_those_that_are_given() -> None:
    given = {"name": "appo", "uses": 3}
    chosen = settled(run_of(algorithm=given), numbers=1).algorithm
    assert (chosen.uses, chosen.buffer_batches, chosen.target_interval) == (3, 3, 6)
    assert chosen.entropy_coef == 0.01
    chosen = settled(
        run_of(algorithm={**given, "buffer_batches": 5, "target_interval": 1})
    ).algorithm
    assert (chosen.buffer_batches, chosen.target_interval) == (5, 1)


def test_what_needs_nothing_settled_stays_as_it_is() -> None:
    run = run_file.load("cartpole")
    assert settled(run) == (run.algorithm, run.learner, ())


def test_ppo_leaves_a_batch_that_has_moved_one_policy_far() -> None:
    assert of("ppo")["algorithm.kl_stop"] == 0.02
    assert of("ppo", env={"population": 8})["algorithm.kl_stop"] == 0.0


def test_what_the_run_scales_itself_is_not_normalised() -> None:
    assert of("ppo")["model.normalise_obs"] and of("ppo")["model.normalise_returns"]
    assert not of("ppo", model={"obs_scale": [2.0]})["model.normalise_obs"]
    assert of("ppo", model={"obs_scale": []})["model.normalise_obs"]
    assert not of("ppo", algorithm={"reward_scale": 0.1})["model.normalise_returns"]


@pytest.mark.parametrize(
    ("model", "normalised"),
    [
        ({}, True),
        ({"kind": "nature"}, True),
        ({"kind": "resnet", "normalise_obs": True}, True),
        ({"kind": "grid"}, False),
        ({"kind": "mlp"}, False),
        ({"kind": "eyes:Eyes"}, False),
        ({"kind": "nature", "normalise_obs": False}, False),  # so says a folder of a release before
        ({"kind": "nature", "normalise_obs": False, "normalise_images": True}, True),
    ],
)
def test_large_images_are_normalised_where_numbers_are(
    model: dict[str, Any], normalised: bool
) -> None:
    filled = algorithm_defaults.filled({"algorithm": {"name": "impala"}, "model": model})
    assert filled["model"]["normalise_images"] is normalised


def test_appos_ring_and_target_follow_its_uses() -> None:
    found = of("appo", algorithm={"uses": 3})
    assert found["algorithm.buffer_batches"] == 3
    assert found["algorithm.target_interval"] == 6


def test_impala_remembers_about_4096_steps_if_anything() -> None:
    assert of("impala")["algorithm.replay_unrolls"] == 64
    assert of("impala", unroll={"length": 4096, "envs": 2})["algorithm.replay_unrolls"] == 1
    without = of("impala", algorithm={"replay_share": 0.0})
    assert without["algorithm.replay_unrolls"] == AlgorithmConfig().replay_unrolls


def test_evaluations_come_sooner_where_they_end_the_run() -> None:
    assert of("ppo")["evaluate.share"] == EvaluateConfig().share
    assert of("ppo", stop={"metric": "training"})["evaluate.share"] == EvaluateConfig().share
    for goal in ("evaluation", "evaluation.won"):
        assert of("ppo", stop={"metric": goal})["evaluate.share"] == 0.2


@pytest.mark.parametrize("name", sorted(set(run_file.shipped()) - {"bare"}))
def test_a_shipped_run_does_not_change_with_the_table(name: str) -> None:
    """What it does not say itself is what the structs of its sections have."""
    _, tables = run_file.read(name)
    for place, value in algorithm_defaults.of(tables).items():
        section, key = place.split(".")
        assert key in tables.get(section, {}) or value == PLAIN[section][key], place
    assert {"kind", "normalise_obs", "normalise_returns"} <= tables["model"].keys()


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_bare_run_is_the_table(name: str) -> None:
    run = run_file.load("bare", [f"algorithm.name={name}"])
    held = run_file.to_dict(run)
    for place, value in of(name).items():
        section, key = place.split(".")
        assert held[section][key] == value, place
