"""Rows of the policy as actions of gymnasium's spaces: exactly placed, and always inside."""

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import as_data
from headrace.learner.spaces import Action, discrete

GRID = np.array([[2, 3], [4, 5]])
SEEN = Box(-1, 1, (1,), np.float32)


def data(space: "Space[Any]", bounds: Any = "clip") -> Action:
    return as_data(SEEN, space, EnvConfig("some-v0", bounds=bounds)).action


@st.composite
def any_box(draw: st.DrawFn) -> Box:
    dtype: Any = draw(st.sampled_from([np.float32, np.float64, np.float16, np.uint8, np.int64]))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    if dtype is np.uint8:
        return Box(3, 250, shape, dtype)
    if dtype is np.int64:
        return Box(-5, draw(st.sampled_from([7, 2**63 - 1])), shape, dtype)
    low = draw(st.sampled_from([-np.inf, -1.0, 0.1, -1e4 / 3]))
    high = draw(st.sampled_from([np.inf, 0.3, 7.7, 1e4 / 3]))
    return Box(low, high, shape, dtype)


PLAIN_SPACE: Any = (
    st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3))
    | st.sampled_from(
        [
            MultiDiscrete([3, 1, 4]),
            MultiDiscrete(GRID, start=GRID - 4),
            MultiBinary(3),
            MultiBinary([2, 2]),
        ]
    )
    | any_box()
)
ANY_SPACE: Any = st.recursive(
    PLAIN_SPACE,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(Tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(Dict)
    ),
    max_leaves=5,
)


def far_rows(action: Action, dice: np.random.Generator, count: int) -> Any:
    """Any choices, and numbers far beyond every bound, too."""
    rows = random_rows(action, dice, count)
    if action.numbers:
        numbers = rows[:, -action.numbers :]
        numbers *= 10.0 ** dice.integers(-3, 9, numbers.shape)
    return rows


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(ANY_SPACE, st.integers(0, 2**31), st.sampled_from(["clip", "tanh"]))
def test_every_row_is_an_action_of_the_space(space: Any, seed: int, bounds: str) -> None:
    """As gymnasium says what is inside it: type, dtype, shape, bounds; batched the same ones."""
    action = data(space, bounds)
    rows = far_rows(action, np.random.default_rng(seed), 4)
    assert (rows.dtype.name, rows.shape) == (action.dtype, (4, *action.shape))
    actions = ActionConverter(action)
    each = actions.each(rows)
    assert all(space.contains(one) for one in each)
    batched = actions.many(rows)
    assert batch_space(space, 4).contains(batched)
    one_by_one = list(iterate(batch_space(space, 4), batched))
    for place, (one, other) in enumerate(zip(each, one_by_one, strict=True)):
        same(one, other)
        same(one, actions.one(rows[place]))


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, tuple):
        for pair in zip(one, other, strict=True):
            same(*pair)
    else:
        np.testing.assert_array_equal(one, other)


def test_where_everything_lies_in_a_row() -> None:
    """Choices first, then numbers, each in the order of the space."""
    space = Dict(
        arm=Box(-2.0, 6.0, (2,)),
        hand=MultiDiscrete([3, 4], start=[0, 5]),
        legs=Tuple([Box(0.0, 1.0, (1,), np.float64), Discrete(3, start=-1)]),
    )
    action = data(space)
    assert action.categories == (3, 4, 3)
    assert (action.numbers, action.shape, action.dtype) == (3, (6,), "float32")
    got = ActionConverter(action).one(np.array([2, 3, 0, 0.5, -1.5, 0.0], np.float32))
    assert list(got) == ["arm", "hand", "legs"]
    np.testing.assert_array_equal(got["arm"], np.array([4.0, -2.0], np.float32))
    np.testing.assert_array_equal(got["hand"], [2, 8])
    np.testing.assert_array_equal(got["legs"][0], [0.5])
    assert got["legs"][1] == -1
    assert type(got["legs"][1]) is int
    assert got["arm"].dtype == np.float32 and got["legs"][0].dtype == np.float64


@pytest.mark.parametrize(("u", "clip"), [(-3.0, -2.0), (-1.0, -2.0), (0.25, 3.0), (1.5, 6.0)])
def test_bounded_numbers(u: float, clip: float) -> None:
    row = np.array([u], np.float32)
    assert ActionConverter(data(Box(-2.0, 6.0, (1,)))).one(row) == pytest.approx(clip)
    assert ActionConverter(data(Box(-2.0, 6.0, (1,)), "tanh")).one(row) == pytest.approx(
        2 + 4 * math.tanh(u)
    )


@pytest.mark.parametrize("bounds", ["clip", "tanh"])
def test_numbers_with_one_bound_or_none(bounds: str) -> None:
    space = Box(np.array([-np.inf, 0, -np.inf]), np.array([np.inf, np.inf, 3]), dtype=np.float64)
    got = ActionConverter(data(space, bounds)).one(np.array([-50, -50, 50], np.float32))
    np.testing.assert_array_equal(got, [-50, 0, 3])


def test_whole_numbers_are_the_nearest() -> None:
    actions = ActionConverter(data(Box(0, 10, (1,), np.int32)))
    got = actions.many(np.array([[-1.0], [-0.89], [0.0], [0.11], [5.0]], np.float32))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got[:, 0], [0, 1, 5, 6, 10])


def test_a_plain_choice_is_not_touched() -> None:
    rows = np.array([2, 0, 1])
    actions = ActionConverter(discrete(3))
    assert actions.many(rows) is rows
    assert actions.each(rows) == [2, 0, 1]
    assert [type(one) for one in (*actions.each(rows), actions.one(rows[0]))] == [int] * 4


@pytest.mark.parametrize(
    "space", [Discrete(5), MultiDiscrete([2, 3]), Tuple([Discrete(3), Box(-1, 1, (2,))])]
)
def test_random_rows_keep_to_the_mask(space: Any) -> None:
    action, dice = data(space), np.random.default_rng(1)
    mask = np.ones((500, sum(action.categories)), np.int8)
    mask[:, 0] = 0
    rows = random_rows(action, dice, 500, mask)
    first = rows if action.single else rows[:, 0]
    assert set(first.tolist()) == set(range(1, action.categories[0]))
    assert len(np.unique(random_rows(action, dice, 500), axis=0)) >= 5
