"""Metrics are found in info as gymnasium's wrappers and vector classes put them there."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers import vector as vector_wrappers

from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.learner.spaces import LARGEST_METRIC

NAMES = ("won", "episode.l", "deep.er.x", "a.b", "missing")


class Short(gymnasium.Env[Any, Any]):
    """Ends after so many steps; says how many there were, and at the last that it won."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, steps: int) -> None:
        self._steps, self._at = steps, 0

    def reset(self, **_: Any) -> Any:
        self._at = 0
        return np.zeros(1, np.float32), {}

    def step(self, _action: Any) -> Any:
        self._at += 1
        over = self._at == self._steps
        info = {"a.b": self._at, **({"won": True, "deep": {"er": {"x": 0.5}}} if over else {})}
        return np.zeros(1, np.float32), 1.0, over, False, info


def read(info: dict[str, Any], *names: str) -> list[float]:
    row = np.zeros(len(names))
    InfoMetrics(names).read(info, row)
    return row.tolist()


def test_of_one_environment() -> None:
    env = RecordEpisodeStatistics(Short(2))
    env.reset()
    np.testing.assert_equal(read(env.step(0)[4], *NAMES), [*[math.nan] * 3, 1.0, math.nan])
    np.testing.assert_equal(read(env.step(0)[4], *NAMES), [1.0, 2.0, 0.5, 2.0, math.nan])


def test_of_a_vector_environment() -> None:
    """Each ends at another step; gymnasium fills the others with zeros and says who gave what."""
    made = gymnasium.vector.SyncVectorEnv([lambda: Short(1), lambda: Short(2)])
    env = vector_wrappers.RecordEpisodeStatistics(made)
    env.reset()
    rows = np.zeros((2, len(NAMES)))
    own, none = InfoMetrics(NAMES), [math.nan] * 3
    own.read_batch(env.step(np.zeros(2, np.int64))[4], rows)
    np.testing.assert_equal(rows, [[1.0, 1.0, 0.5, 1.0, math.nan], [*none, 1.0, math.nan]])
    own.read_batch(env.step(np.zeros(2, np.int64))[4], rows)
    np.testing.assert_equal(rows, [[*none, math.nan, math.nan], [1.0, 2.0, 0.5, 2.0, math.nan]])


def test_of_final_info() -> None:
    """As a vector class has it that resets at once."""
    info = {"final_info": {"won": np.array([1.0, 0.0])}, "_final_info": np.array([True, False])}
    rows = np.zeros((2, 1))
    InfoMetrics(["final_info.won"]).read_batch(info, rows)
    np.testing.assert_equal(rows, [[1.0], [math.nan]])


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, np.float32(1), np.bool_(True), np.array(1), np.array([[1]])]
)
def test_numbers(value: Any) -> None:
    assert read({"won": value}, "won") == [1.0]


@pytest.mark.parametrize(
    "value",
    [
        "1",
        b"1",
        math.nan,
        -math.inf,
        10**400,
        2 * LARGEST_METRIC,
        1j,
        [1, 2],
        np.zeros(2),
        {"x": 1},
        print,
        np.array(["a"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_told_from_what_is_missing(value: Any) -> None:
    assert read({"won": value}, "won") == [math.inf]


def test_a_number_where_a_dict_was_is_no_number() -> None:
    assert read({"deep": 3}, "deep.er") == [math.inf]


@pytest.mark.parametrize("values", [1.0, "x", [1.0], np.zeros((2, 2)), {"x": 1}])
def test_a_vector_that_does_not_have_one_for_each(values: Any) -> None:
    rows = np.zeros((2, 1))
    InfoMetrics(["won"]).read_batch({"won": values}, rows)
    assert np.isposinf(rows).all()


def test_entries_of_objects() -> None:
    """Gymnasium makes such arrays where the types differ."""
    rows = np.zeros((3, 1))
    InfoMetrics(["won"]).read_batch({"won": np.array([None, 1, "x"], object)}, rows)
    np.testing.assert_equal(rows, [[math.nan], [1.0], [math.inf]])
