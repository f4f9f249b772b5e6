"""Spaces as data, and observations written into rows: exactly what was returned, or a refusal."""

from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError, Writer, as_data
from headrace.actors.stepping.stepper import Frame
from headrace.broker.protocol.messages import MAX_BUFFERS
from headrace.learner import spaces
from headrace.learner.spaces import Action, Leaf, Part, Spaces, unroll_fields

TWO = Discrete(2)
IMAGE = Box(0, 255, (8, 9), np.uint8)


def leaves(space: Any, stack: int = 1) -> tuple[Leaf, ...]:
    return as_data(space, TWO, EnvConfig("some-v0", stack=stack)).observation


def writer(space: Any) -> tuple[Writer, dict[str, Any]]:
    """With the rows of three environments, full of 77."""
    data = as_data(space, TWO, EnvConfig())
    rows = Frame.empty(data, groups=1, envs=3).obs
    for row in rows.values():
        row.fill(77)
    return Writer(space, data), rows


def flat(space: Any, sample: Any, name: str = "") -> dict[str, Any]:
    """Every part of a sample by its name, said a second time."""
    inner = {}
    if isinstance(space, Dict):
        inner = {key: (space[key], sample[key]) for key in space.spaces}
    elif isinstance(space, Tuple):
        inner = {str(at): (space[at], sample[at]) for at in range(len(space))}
    else:
        return {name or "obs": np.asarray(sample) - getattr(space, "start", 0)}
    parts: dict[str, Any] = {}
    for key, pair in inner.items():
        parts |= flat(*pair, f"{name}.{key}" if name else key)
    return parts


@st.composite
def plain_spaces(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["float", "image", "bool", "discrete", "binary", "multi", "grid"]))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    start = draw(st.integers(-5, 5))
    match kind:
        case "float":
            return Box(-np.inf, 2.5, shape, draw(st.sampled_from([np.float32, np.float64])))
        case "image":
            return Box(0, 255, shape, np.uint8)
        case "bool":
            return Box(0, 1, shape, np.bool_)
        case "discrete":
            return Discrete(draw(st.integers(1, 9)), start=start)
        case "binary":
            return MultiBinary(draw(st.integers(1, 4)))
        case "multi":
            return MultiDiscrete([3, 1, 4], start=[start, 0, -start])
        case _:
            return MultiDiscrete(np.array([[2, 3], [4, 5]]))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
    )


ANY_SPACE = st.recursive(plain_spaces(), nested, max_leaves=6)


@settings(max_examples=80, deadline=None)
@given(ANY_SPACE, st.integers(0, 2**31))
def test_what_was_written_is_what_was_returned(space: Any, seed: int) -> None:
    space.seed(seed)
    made, rows = writer(space)
    samples = [space.sample() for _ in range(2)]
    for at, sample in enumerate(samples):
        made.check(sample)
        made.write(rows, at, sample)
    assert list(rows) == list(flat(space, samples[0]))
    for at, sample in enumerate(samples):
        for name, value in flat(space, sample).items():
            np.testing.assert_array_equal(rows[name][at], value)
    assert all((row[2] == np.asarray(77).astype(row.dtype)).all() for row in rows.values())


@settings(max_examples=40, deadline=None)
@given(ANY_SPACE, st.integers(0, 2**31))
def test_a_batch_is_what_its_environments_returned(space: Any, seed: int) -> None:
    space.seed(seed)
    made, rows = writer(space)
    samples = [space.sample(), space.sample()]
    empty: Any = create_empty_array(space, 2)
    batch = concatenate(space, samples, empty)
    assert batch_space(space, 2).contains(batch)
    _, one_by_one = writer(space)
    for at, sample in enumerate(samples):
        made.write(one_by_one, at + 1, sample)
    made.write_batch(rows, slice(1, 3), batch)
    for name, row in rows.items():
        np.testing.assert_array_equal(row, one_by_one[name])
    scattered = writer(space)[1]
    made.write_batch(scattered, np.array([2, 1]), batch)
    for name, row in scattered.items():
        np.testing.assert_array_equal(row[[0, 2, 1]], rows[name])


def test_a_plain_space_is_one_leaf() -> None:
    assert leaves(Box(-1, 1, (3,), np.float64)) == (Leaf("obs", "<f8", (3,)),)
    assert leaves(Box(-1, 1, (2,), np.dtype(">f4"))) == (Leaf("obs", "<f4", (2,)),)
    assert leaves(Discrete(5, start=-2)) == (Leaf("obs", "<i8", (), (5,), (-2,)),)
    assert leaves(MultiBinary([2, 3])) == (Leaf("obs", "|i1", (2, 3)),)
    assert leaves(MultiDiscrete([3, 4])) == (Leaf("obs", "<i8", (2,), (3, 4)),)
    grid = MultiDiscrete(np.array([[3, 4], [5, 6]]))
    assert leaves(grid) == (Leaf("obs", "<i8", (2, 2), (3, 4, 5, 6)),)


def test_parts_are_named_by_their_path() -> None:
    space = Dict(arm=Dict(joints=Box(-1, 1, (7,))), eyes=Tuple([Discrete(3), Dict(camera=IMAGE)]))
    assert [leaf.name for leaf in leaves(space)] == ["arm.joints", "eyes.0", "eyes.1.camera"]


def test_truth_values_with_height_and_width_are_an_image() -> None:
    space = Box(0, 1, (3, 2, 2), np.bool_)  # type: ignore[arg-type]
    assert leaves(space) == (Leaf("obs", "|u1", (3, 2, 2)),)
    assert leaves(Box(0, 1, (3,), np.bool_)) == (Leaf("obs", "|i1", (3,)),)
    to, rows = writer(space)
    board = np.array([True, False] * 6).reshape(3, 2, 2)
    to.check(board)
    to.write(rows, 1, board)
    np.testing.assert_array_equal(rows["obs"][1], board.astype(np.uint8))


def test_images_of_nothing_above_1_are_binary() -> None:
    parts = {
        "truth": Box(0, 1, (3, 4), np.bool_),  # type: ignore[arg-type]
        "bits": MultiBinary((3, 4)),
        "ones": Box(0, 1, (3, 4), np.uint8),
        "codes": Box(0, 2, (3, 4), np.uint8),
        "pixels": IMAGE,
        "flags": MultiBinary(4),
        "choice": MultiDiscrete([2, 2]),
    }
    data = as_data(Dict(parts), TWO, EnvConfig())
    assert data.binary == ("ones", "truth")  # a MultiBinary is no image
    # Neither who joins a run nor a folder of before is refused for it.
    assert msgspec.structs.replace(data, binary=()).digest() == data.digest()


def test_texts_inside_a_dict_are_not_seen() -> None:
    space = Dict(board=IMAGE, mission=Text(9), more=Tuple([Text(3), TWO]))
    assert [leaf.name for leaf in leaves(space)] == ["board", "more.1"]
    to, rows = writer(space)
    seen = {"board": np.ones((8, 9), np.uint8), "mission": "go", "more": ("no", 1)}
    to.check(seen)
    to.write(rows, 2, seen)
    assert rows["board"][2].all() and rows["more.1"][2] == 1


def test_only_images_are_stacked() -> None:
    space = Dict(camera=IMAGE, joints=Box(-1, 1, (7, 2)), wide=Box(0, 9, (4,), np.uint8))
    assert [leaf.stack for leaf in leaves(space, stack=4)] == [4, 1, 1]
    assert leaves(IMAGE)[0].stack == 1
    Writer(IMAGE, as_data(IMAGE, TWO, EnvConfig(stack=4)))


WRONG_SPACES = [
    (Text(3), 1, r"observation obs is Text\(1, 3.* supported; .* in a wrapper \(env.wrappers\)"),
    (Dict(a=TWO, b=Box(0, 1, (2, 0))), 1, r"b is Box\(.* \(2, 0\), .*has no element; leave it out"),
    (Dict(a=TWO, b=Tuple([Sequence(TWO)])), 1, r"observation b.0 is Sequence\(Discrete\(2\)"),
    (Dict(net=Graph(TWO, None)), 1, "observation net is Graph"),
    (OneOf([TWO, IMAGE]), 1, "observation obs is OneOf"),
    (Box(0, 1, (2,), np.longdouble), 1, "observation obs is a Box of .*float.*not supported"),
    (Dict({"a.b": TWO, "a": Dict(b=TWO)}), 1, "2 parts of the observation are called a.b"),
    (Tuple([TWO] * 26), 1, "has 26 parts, 1 to 25 can travel"),
    (Dict({}), 1, "has 0 parts, 1 to 25 can travel"),
    (Dict(mission=Text(3)), 1, "has 0 parts, 1 to 25 can travel"),
    (Box(0, 255, (9,), np.uint8), 2, "no part of the observation is an image.*env.stack = 1"),
]


@pytest.mark.parametrize(("space", "stack", "words"), WRONG_SPACES)
def test_observations_that_cannot_travel(space: Any, stack: int, words: str) -> None:
    with pytest.raises(EnvError, match=f"some-v0: .*{words}") as caught:
        leaves(space, stack)
    assert "\n" not in str(caught.value)


def test_25_parts_can_with_all_that_goes_with_them() -> None:
    data = as_data(Tuple([TWO] * 25), TWO, EnvConfig())
    assert len(unroll_fields(data, length=2, envs=1, memory=3, previous=True)) == MAX_BUFFERS


def action_of(space: Any, bounds: Any = "clip") -> Action:
    return as_data(TWO, space, EnvConfig("some-v0", bounds=bounds)).action


def test_actions_as_data() -> None:
    assert action_of(Discrete(7)) == spaces.discrete(7)
    assert action_of(Discrete(2, start=1)).parts == (Part((), "int64", (), (2,), (1,)),)
    grid = MultiDiscrete(np.array([[3, 4], [5, 6]]), start=np.array([[0, 1], [-2, 0]]))
    assert action_of(grid).parts == (Part((), "int64", (2, 2), (3, 4, 5, 6), (0, 1, -2, 0)),)
    assert action_of(MultiBinary([1, 2])).parts == (Part((), "int8", (1, 2), (2, 2), (0, 0)),)
    box = Box(np.array([-1, -np.inf]), np.array([2.5, np.inf]), dtype=np.float64)
    assert action_of(box).parts == (
        Part((), "float64", (2,), low=(-1.0, -np.inf), high=(2.5, np.inf)),
    )
    whole = Box(0, 255, (), np.uint8)
    assert action_of(whole).parts == (Part((), "uint8", (), low=(0.0,), high=(255.0,)),)
    assert [action_of(box, bounds).squash for bounds in ("clip", "tanh")] == [False, True]


def test_a_box_of_integers_without_bounds_has_none() -> None:
    """gymnasium writes the limits of the dtype there."""
    (part,) = action_of(Box(-np.inf, np.inf, (1,), np.int32)).parts
    assert (part.low, part.high) == ((-np.inf,), (np.inf,))


def test_parts_of_an_action_have_their_path() -> None:
    space = Dict(arm=Tuple([Box(-1, 1, (2,)), Discrete(3)]), leg=Dict(up=TWO, way=MultiBinary(2)))
    action = action_of(space)
    assert [part.path for part in action.parts] == [
        ("arm", 0),
        ("arm", 1),
        ("leg", "up"),
        ("leg", "way"),
    ]
    assert (action.categories, action.numbers) == ((3, 2, 2, 2), 2)


INT_KEYS: Any = {1: TWO}
BOOL: Any = np.bool_


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Text(3), r"it is Text\(1, 3.* is not supported; .* in a wrapper \(env.wrappers\)"),
        (Dict(a=TWO, b=Tuple([Sequence(TWO)])), r"b\.0 is Sequence\(Discrete\(2\)"),
        (Dict(net=Graph(TWO, None)), "net is Graph"),
        (OneOf([TWO, IMAGE]), "it is OneOf"),
        (Tuple([]), "it is empty; leave it out"),
        (Dict(a=TWO, b=Dict({})), "b is empty; leave it out"),
        (Dict(INT_KEYS), "has the key 1; make it a string"),
        (Box(-1, 1, (0,)), "which has no element"),
        (Box(0, 1, (2,), BOOL), "a Box of bool; make it a MultiBinary"),
        (Box(0, 1, (2,), np.longdouble), "a Box of .*float"),
    ],
)
def test_actions_that_are_not_supported(action: Any, words: str) -> None:
    with pytest.raises(EnvError, match=f"^some-v0: action: .*{words}") as caught:
        action_of(action)
    assert "\n" not in str(caught.value)


def test_another_space_than_the_run_began_with() -> None:
    began = Spaces((Leaf("obs", "<f4", (4,)),), spaces.discrete(2))
    with pytest.raises(EnvError, match=r"obs float32\[4\].*same every time"):
        Writer(Box(-1, 1, (3,)), began)


FLOATS = Box(-1, 1, (3,), np.float32)
BOTH = Dict(a=FLOATS, n=Discrete(3, start=2))
OK = np.zeros(3, np.float32)
# What a space refuses at every step, and the words.
REFUSED: list[tuple[gymnasium.Space[Any], Any, str]] = [
    (FLOATS, np.zeros(4, np.float32), r"obs: float32\[4\] was returned, the space says float32\[3"),
    (FLOATS, np.zeros(1, np.float32), r"float32\[1\] was returned"),
    (FLOATS, np.float32(0), r"float32\[\] was returned"),
    (FLOATS, np.zeros((1, 3), np.float32), r"float32\[1, 3\] was returned"),
    (FLOATS, np.zeros(3, np.complex64), r"complex64\[3\] was returned"),
    (FLOATS, 0.5, r"float64\[\] was returned"),
    (FLOATS, [[1.0], [2.0, 3.0]], r"object\[2\] was returned"),
    (FLOATS, None, r"object\[\] was returned"),
    (IMAGE, np.zeros((8, 9), np.float32), r"float32\[8, 9\] was returned, the space says uint8"),
    (IMAGE, np.zeros((8, 9), np.int64), r"int64\[8, 9\] was returned"),
    (Box(0, 9, (2,), np.uint8), [256, 0], r"int64\[2\] was returned"),
    (Box(0, 9, (2,), np.int8), np.array([300, 0]), r"int64\[2\] was returned"),
    (Box(0, 9, (2,), np.int64), [1, np.nan], r"float64\[2\] was returned"),
    (Discrete(3, start=2), 5, "obs: 5 was returned, the space says 2 to 4"),
    (Discrete(3, start=2), 1, "obs: 1 was returned, the space says 2 to 4"),
    (Discrete(3), 1.0, r"float64\[\] was returned, the space says int64\[\]"),
    (Discrete(3), np.array([1]), r"int64\[1\] was returned"),
    (MultiDiscrete([3, 4]), np.array([2, 4]), r"obs: 4 at \[1\] was returned, the space says 0 to"),
    (MultiDiscrete([3, 4], start=[1, 0]), [0, 0], r"0 at \[0\] was .* the space says 1 to 3"),
    (MultiDiscrete([3, 4]), np.array([2.0, 3.0]), r"float64\[2\] was returned"),
    (BOTH, {"a": OK}, r"obs: a dict of \['a'\] was returned, the space says \['a', 'n'\]"),
    (BOTH, {"a": OK, "n": 2, "z": 1}, r"a dict of \['a', 'n', 'z'\] was returned"),
    (BOTH, OK, "obs: a ndarray was returned, the space says a dict"),
    (BOTH, {"a": OK, "n": 0}, "n: 0 was returned, the space says 2 to 4"),
    (BOTH, {"a": np.zeros(2), "n": 2}, r"a: float64\[2\] was returned"),
    (Tuple([TWO, TWO]), (1,), "obs: a tuple was returned, the space says a tuple of 2"),
    (Tuple([TWO, TWO]), np.ones(2, int), "obs: a ndarray was returned"),
]


@pytest.mark.parametrize(("space", "observation", "words"), REFUSED)
def test_refused_at_every_step(space: Any, observation: Any, words: str) -> None:
    made, rows = writer(space)
    with pytest.raises(ValueError, match=words) as caught:
        made.write(rows, 1, observation)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=words):
        made.check(observation)


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (FLOATS, np.array([0, 2, 0], np.float32), r"obs: 2.0 at \[1\] was .* says -1.0 to 1.0"),
        (FLOATS, np.array([-2, 0, 0], np.float32), r"obs: -2.0 at \[0\] was"),
        (FLOATS, np.array([0, 0, np.nan], np.float32), r"nan at \[2\] was returned"),
        (Box(0, 1, ()), np.float32(3), "obs: 3.0 was returned, the space says 0.0 to 1.0"),
        (Box(0, 9, (2,), np.uint8), np.array([1, 10], np.uint8), "10 at .* says 0 to 9"),
        (MultiBinary(2), np.array([0, 2], np.int8), r"2 at \[1\] was returned"),
    ],
)
def test_refused_at_the_first_of_an_episode(space: Any, observation: Any, words: str) -> None:
    """Bounds are looked at once an episode; a step is too short for it."""
    made, rows = writer(space)
    made.write(rows, 0, observation)
    with pytest.raises(ValueError, match=words):
        made.check(observation)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (FLOATS, np.array([0.5, 0, -1])),  # float64
        (FLOATS, np.array([1, 0, -1], np.int8)),
        (FLOATS, [0.5, 0, -1]),
        (Box(0, 255, (2,), np.uint8), (255, 0)),
        (Box(0, 255, (2,), np.uint8), [True, False]),
        (Box(0, 9, (), np.float32), 3.5),
        (Box(0, 9, (2,), np.int8), np.array([9, 0])),  # int64
        (Discrete(3), np.array(2, np.int32)),
        (MultiDiscrete([3, 4]), (2, 3)),
        (MultiBinary(2), [True, False]),
    ],
)
def test_sloppy_but_unmistakable(space: Any, observation: Any) -> None:
    made, rows = writer(space)
    made.check(observation)
    made.write(rows, 1, observation)
    np.testing.assert_array_equal(rows["obs"][1], np.asarray(observation))


@pytest.mark.parametrize(
    ("space", "batch", "words"),
    [
        (FLOATS, np.zeros((1, 3), np.float32), r"float32\[1, 3\] was .* says float32\[2, 3\]"),
        (FLOATS, OK, r"float32\[3\] was returned"),
        (FLOATS, np.zeros((2, 3), complex), r"complex128\[2, 3\] was returned"),
        (Discrete(3), np.array([0, 3]), r"3 at \[1\] was returned, the space says 0 to 2"),
        (Discrete(3), 1, r"int64\[\] was returned, the space says int64\[2\]"),
        (MultiDiscrete([3, 4]), np.array([[0, 0], [3, 0]]), r"3 at \[1, 0\] .* says 0 to 2"),
        (BOTH, {"a": np.zeros((2, 3), np.float32)}, r"a dict of \['a'\] was returned"),
    ],
)
def test_a_batch_that_is_refused(space: Any, batch: Any, words: str) -> None:
    made, rows = writer(space)
    with pytest.raises(ValueError, match=words):
        made.write_batch(rows, slice(0, 2), batch)
