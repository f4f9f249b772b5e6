"""Many policies in one learner, from `headrace train` to one of them alone."""

import csv

import headrace
from tests.system.commands.test_train import check_books
from tests.system.conftest import RUN, Place

SETS = (
    "--set", "env.id=CartPole-v1", "--set", "algorithm.name=ppo",
    "--set", "env.population=4", "--set", "learner.spread={ lr = 3.0 }",
)  # fmt: skip


def table(place: Place) -> list[dict[str, str]]:
    with (place.out / "population.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_policy_of_a_population_is_trained_kept_and_taken_out(place: Place) -> None:
    place.run = "bare"
    assert place.train(*SETS, "--stop-steps", "20000").ends() == 0
    check_books(place)
    told, rows = place.summary()["population"], table(place)
    assert (told["policies"], told["played"]) == (4, 4)
    assert told["least_return"] <= told["median_return"] <= told["best_return"]
    assert [int(row["policy"]) for row in rows] == [0, 1, 2, 3]
    assert sum(int(row["episodes"]) for row in rows) > 20
    assert len({row["lr_factor"] for row in rows}) == 4
    best = max(rows, key=lambda row: float(row["mean_return"]))
    assert int(best["policy"]) == told["best"]
    assert float(best["mean_return"]) > 40  # a policy that knows nothing has 20

    again = place.train(*SETS, "--resume", "--stop-steps", "26000")
    assert again.ends() == 0
    later = table(place)
    assert [row["lr_factor"] for row in later] == [row["lr_factor"] for row in rows]
    assert all(
        int(new["episodes"]) >= int(old["episodes"]) for new, old in zip(later, rows, strict=True)
    )

    played = place.headrace("play", str(place.out), "--set", f"env.policy={told['best']}")
    assert played.ends() == 0
    refused = place.headrace("play", str(place.out), "--set", "env.policy=4")
    assert refused.ends() == 2
    assert "env.policy = 4: the policies are numbered 0 to 3" in refused.text()
    policy = headrace.load_policy(place.out, policy=2)
    action, _ = policy.act([0.0, 0.0, 0.0, 0.0])
    assert action in (0, 1)


def test_the_worst_go_on_as_the_best_and_a_replay_does_the_same(place: Place) -> None:
    place.run = "bare"
    every = ("--set", "learner.replace_every=1000", "--set", "env.population=8")
    assert place.train(*SETS, *every, "--record", "--stop-steps", "30000").ends() == 0
    rows = table(place)
    assert any(row["parent"] for row in rows)
    replay = place.headrace("replay", str(place.out))
    assert replay.ends() == 0, replay.text()
    assert "identical" in replay.text()
    assert place.train(*SETS, *every, "--resume", "--stop-steps", "34000").ends() == 0
    parents = [row["parent"] for row in table(place)]
    assert all(now for now, row in zip(parents, rows, strict=True) if row["parent"])


def test_a_population_in_one_process_and_what_it_refuses(place: Place) -> None:
    place.run = "bare"
    assert place.train(*SETS, "--debug", "--stop-steps", "3000").ends() == 0
    assert len(table(place)) == 4
    other = place.train(*SETS, "--out", "x", "--set", "model.core=lstm")
    assert other.ends() == 2
    assert "model.core is 'lstm'" in other.text()
    other = place.train(*SETS, "--out", "y", "--set", "learner.optimiser=rmsprop")
    assert other.ends() == 2
    assert "learner.optimiser is set beside env.population" in other.text()


def test_one_rank_trains_all_of_them(place: Place) -> None:
    text = RUN.replace("[model]", '[model]\nkind = "mlp"').replace(
        'id = "CartPole-v1"', 'id = "CartPole-v1"\npopulation = 3'
    )
    place.run = place.toml("run.toml", text)
    broker = place.broker()
    for rank in place.two_ranks():
        assert rank.ends() == 2
        assert "env.population = 3: one learner rank trains all of them" in rank.text()
    broker.kill()
