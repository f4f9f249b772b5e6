"""Whose episodes ended: found in the unroll, summed up by policy, kept over a restart."""

import numpy as np
import pytest

from headrace.learner.batches.policy_returns import PolicyReturns
from headrace.learner.batches.unroll_ends import EpisodeEnds, players_of
from headrace.learner.progress import Progress
from headrace.learner.spaces import DEAD, POLICY, TERMINATED, TRUNCATED


def ends(*episodes: tuple[int, float, int], players: tuple[int, ...]) -> EpisodeEnds:
    return EpisodeEnds(1, 0, 2, 5, episodes, players=players)


def test_an_episode_is_of_whoever_played_its_last_step() -> None:
    policy = np.array([[1, 7, 3], [1, 7, 3], [2, 7, 3], [2, 7, 3], [4, 7, 5]])
    flags = np.zeros((4, 3), np.uint8)
    flags[1, 0], flags[2, 0], flags[3, 0] = TERMINATED, DEAD, TRUNCATED
    flags[3, 2] = TERMINATED
    arrays = {f"obs.{POLICY}": policy, "flags": flags}
    told = ((0, 5.0, 2), (2, 6.0, 9), (0, 7.0, 1))
    assert players_of(arrays, slice(0, 3), told) == (1, 3, 2)
    assert players_of(arrays, slice(2, 3), ((0, 6.0, 9),)) == (3,)
    # Two are told, and only one is there: the latest.
    assert players_of(arrays, slice(2, 3), ((0, 1.0, 9), (0, 6.0, 9))) == (-1, 3)
    assert players_of({"flags": flags}, slice(0, 3), told) == ()


def test_returns_are_summed_up_by_policy() -> None:
    found = PolicyReturns(4)
    assert found.summary() is None
    found.add([ends((0, 10.0, 5), (1, 20.0, 6), (0, 30.0, 7), players=(2, 0, 2))])
    found.add([ends((0, 99.0, 5), players=(-1,)), ends((0, 1.0, 5), players=())])
    assert found.means.tolist()[:1] == [20.0]
    assert np.isnan(found.means).tolist() == [False, True, False, True]
    assert found.summary() == {
        "policies": 4,
        "played": 2,
        "best": 0,
        "best_return": 20.0,
        "median_return": 20.0,
        "least_return": 20.0,
    }
    lines = found.table({"lr_factor": [1.0, 2.0, 0.5, 1 / 3]}).splitlines()
    assert lines == [
        "policy,episodes,steps,mean_return,parent,lr_factor",
        "0,1,6,20,,1",
        "1,0,0,,,2",
        "2,2,12,20,,0.5",
        "3,0,0,,,0.333333",
    ]


def test_old_episodes_count_less_and_less() -> None:
    found = PolicyReturns(1)
    for returned in [0.0] * 30 + [100.0] * 30:
        found.add([ends((0, returned, 1), players=(0,))])
    assert found.means[0] == pytest.approx(100 * (1 - 0.9**30))


def test_the_worst_quarter_goes_on_as_the_best_quarter() -> None:
    found = PolicyReturns(10)
    told = [(0, float(at), 5) for at in range(9)]  # the last policy has ended no episode
    found.add([ends(*told, players=tuple(range(9)))])
    pairs = found.replace(np.random.default_rng(1), at=700)
    assert sorted(policy for policy, _ in pairs) == [0, 1]
    assert sorted(better for _, better in pairs) == [7, 8]
    assert [found.means[policy] for policy, _ in pairs] == [better for _, better in pairs]
    assert found.replaced_at == 700
    lines = [line.split(",") for line in found.table({"lr": [1.0] * 10}).splitlines()[1:]]
    assert {int(line[0]): int(line[4]) for line in lines if line[4]} == dict(pairs)


@pytest.mark.parametrize("returns", [[], [3.0], [3.0, 3.0], [3.0] * 8])
def test_who_is_not_better_replaces_nobody(returns: list[float]) -> None:
    found = PolicyReturns(8)
    played = [(0, one, 5) for one in returns]
    found.add([ends(*played, players=tuple(range(len(returns))))])
    assert found.replace(np.random.default_rng(1), at=9) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_they_are_kept_over_a_restart(replaced: bool) -> None:
    before, after = Progress(population=3), Progress()
    before.population.add([ends((0, 10.0, 5), (0, 4.0, 5), players=(1, 2))])
    if replaced:
        assert before.population.replace(np.random.default_rng(1), at=77) == [(2, 1)]
    after.restore(before.state())
    assert after.state() == before.state()
    factors = {"lr_factor": [1.0] * 3}
    assert after.population.table(factors) == before.population.table(factors)
    assert after.population.replaced_at == 77 * replaced
    older = Progress().state()
    older.pop("population")
    after = Progress()
    after.restore(older)
    assert after.population.summary() is None
