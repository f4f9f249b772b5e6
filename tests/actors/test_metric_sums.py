"""The metrics of unrolls, against the whole stream of steps that they were cut from."""

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.metric_sums import MetricSums
from headrace.actors.rollout import Rollout
from headrace.learner.spaces import (
    DEAD,
    ENDED,
    FIGURES,
    LAST,
    LEAST,
    MEAN,
    MOST,
    STEPS,
    TERMINATED,
    Leaf,
    Spaces,
    discrete,
    unroll_fields,
)

LENGTH = 4
STEP = st.tuples(st.sampled_from([0, 0, 0, TERMINATED, DEAD]), st.sampled_from([None, 1, 2, -5]))


def plain(steps: list[tuple[int, Any]], first: int) -> list[float]:
    """One environment and one metric, in the unroll from step `first` on, each step by itself."""
    found: dict[int, float] = dict.fromkeys(FIGURES, 0.0)
    given, last = [], None
    for at, (flags, value) in enumerate(steps[: first + LENGTH]):
        value = None if flags == DEAD else value
        if value is not None:
            last = value
            given += [value] * (at >= first)
        if flags == TERMINATED and at >= first:
            found[ENDED], found[LAST] = (1, 0.0) if last is None else (2, last)
        if flags:
            last = None
    if given:
        found[STEPS], found[MEAN] = len(given), sum(given) / len(given)
        found[LEAST], found[MOST] = min(given), max(given)
    return [found[name] for name in FIGURES]


@given(st.lists(st.lists(STEP, min_size=3 * LENGTH, max_size=3 * LENGTH), min_size=1, max_size=3))
@settings(max_examples=200)
def test_each_unroll_has_its_steps_and_the_episodes_that_ended(
    columns: list[list[tuple[int, Any]]],
) -> None:
    sums = MetricSums(length=LENGTH, envs=len(columns), metrics=1)
    for first in range(0, 3 * LENGTH, LENGTH):
        rows = [column[first : first + LENGTH] for column in columns]
        flags = np.array([[flags for flags, _ in row] for row in rows], np.uint8).T
        sums.steps[..., 0] = np.array(
            [[math.nan if v is None or f == DEAD else v for f, v in row] for row in rows]
        ).T
        made = np.full((1, len(columns), 1, len(FIGURES)), 9.0)
        sums.sum_up(flags, made)
        assert made[0, :, 0].tolist() == [plain(column, first) for column in columns]


def test_values_that_are_no_numbers_are_counted_and_left_out() -> None:
    sums = MetricSums(length=2, envs=1, metrics=2)
    sums.steps[:] = [[[math.inf, 1.0]], [[3.0, math.inf]]]
    made = np.zeros((1, 1, 2, len(FIGURES)))
    sums.sum_up(np.array([[0], [TERMINATED]], np.uint8), made)
    assert sums.unusable.tolist() == [1, 1]
    assert made[0, 0, :, LAST].tolist() == [3.0, 1.0]
    assert made[0, 0, :, STEPS].tolist() == [1.0, 1.0]


def test_an_unroll_carries_them_as_its_last_buffer() -> None:
    """One that leaves early counts the steps that were played, and none of the one before."""
    spaces = Spaces((Leaf("obs", "<f4", (1,)),), discrete(2), ("won",))
    rollout = Rollout(spaces, length=20, envs=2)
    (part,) = rollout.parts
    zero, row = np.zeros(2, np.float32), {"obs": np.zeros((2, 1), np.float32)}
    for played in (20, 5):
        rollout.open({})
        for t in range(played):
            part.acted(row, np.zeros(2, np.int64), zero, 0)
            part.stepped(zero, np.zeros(2, np.uint8), np.array([[t], [math.nan]]))
        part.close(row)
        rollout.count()
        done = rollout.finish()
        *_, field = unroll_fields(spaces, length=20, envs=2)
        made = np.frombuffer(done.buffers[-1], field.dtype).reshape(field.shape)
        assert made[0, :, 0, STEPS].tolist() == [played, 0]
        assert made[0, :, 0, MEAN].tolist() == [(played - 1) / 2, 0]
