"""Actions of every kind in batches: each within its categories, and nothing that was forbidden."""

from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from headrace.broker.protocol.messages import Deliver
from headrace.learner.batches.batch import Batch
from headrace.learner.spaces import DEAD, Action, Leaf, Part, Spaces, unroll_fields
from tests.learner.unrolls import words

MIXED = Action(
    (
        Part(("hand",), "int64", (2,), (3, 2), (0, 0)),
        Part(("arm",), "float32", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    )
)
CHOICES = Action((Part((), "int64", (2,), (3, 2), (0, 0)),))
SEEN = Leaf("obs", "<f4", (1,))
T, G = 3, 2
Arrays = dict[str, NDArray[Any]]


def batch(action: Action, *, masked: bool = False) -> Batch:
    return Batch(spaces(action, masked), length=T, envs=G, unrolls=2, pinned=False, previous=True)


def spaces(action: Action, masked: bool) -> Spaces:
    count = sum(action.categories)
    return Spaces((SEEN, *([Leaf("legal", "|i1", (count,), mask=True)] if masked else ())), action)


def unroll(action: Action, *, masked: bool = False) -> Arrays:
    """The largest choices, numbers far out, everything allowed, nothing before."""
    arrays = {}
    fields = unroll_fields(spaces(action, masked), length=T, envs=G, previous=True)
    for field in fields:
        arrays[field.name] = np.zeros(field.shape, field.dtype)
    arrays["action"][..., :2] = [2, 1]
    arrays["before.action"][..., :2] = -1
    if action.numbers:
        arrays["action"][..., 2:] = 1e6
    if masked:
        arrays["obs.legal"][:] = 1
    return arrays


def place(own: Batch, arrays: Arrays) -> str:
    buffers = [array.tobytes() for array in arrays.values()]
    live = T * G - int(np.count_nonzero(arrays["flags"] & DEAD))
    deliver = Deliver(
        tag=1,
        attempt=1,
        actor="a",
        inc=5,
        stream=1,
        seq=0,
        floor=0,
        version_min=0,
        version_max=0,
        steps=live,
        digest=xxhash.xxh3_64_intdigest(b"".join(buffers)),
        ended=0,
        episodes=(),
    )
    return words(own.place(deliver, buffers))


@pytest.mark.parametrize("action", [MIXED, CHOICES])
def test_rows_lie_in_their_columns(action: Action) -> None:
    own, arrays = batch(action), unroll(action)
    assert place(own, arrays) == ""
    np.testing.assert_array_equal(own.tensors["action"][:, :G].numpy(), arrays["action"])
    assert own.tensors["action"].shape == (T, 2 * G, *action.shape)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("action", (1, 1, 0), 3, "an action outside 0..2 x 0..1"),
        ("action", (1, 1, 1), 2, "an action outside 0..2 x 0..1"),
        ("action", (0, 0, 0), -1, "an action outside 0..2 x 0..1"),
        ("action", (0, 0, 0), 0.5, "an action outside 0..2 x 0..1"),
        ("action", (2, 0, 3), np.nan, "action is not finite"),
        ("before.action", (0, 1, 0), -2, "before row 0 an action outside 0..2 x 0..1"),
        ("before.action", (0, 1, 1), 2, "before row 0 an action outside 0..2 x 0..1"),
        ("before.action", (0, 1, 1), 0.5, "before row 0 an action outside 0..2 x 0..1"),
        ("before.action", (0, 1, 2), np.inf, "before.action is not finite"),
    ],
)
def test_what_no_policy_can_have_chosen(name: str, at: Any, value: float, words: str) -> None:
    arrays = unroll(MIXED)
    arrays[name][at] = value
    assert place(batch(MIXED), arrays) == words


@pytest.mark.parametrize("action", [MIXED, CHOICES])
def test_masks(action: Action) -> None:
    own, arrays = batch(action, masked=True), unroll(action, masked=True)
    arrays["obs.legal"][1, 1] = [0, 0, 1, 0, 1]  # what was chosen, and nothing else
    assert place(own, arrays) == ""
    arrays["obs.legal"][1, 1] = [1, 1, 0, 1, 1]
    assert place(own, arrays) == "an action that the mask forbids"
    arrays["obs.legal"][1, 1] = [1, 1, 1, 1, 0]
    assert place(own, arrays) == "an action that the mask forbids"
    arrays["obs.legal"][1, 1] = [1, 1, 1, 0, 0]
    assert place(own, arrays) == "a mask that allows nothing"
    arrays["flags"][1, 1] = DEAD  # it only resets, and the episode's last mask is empty
    assert place(own, arrays) == ""


def test_nothing_is_chosen_at_the_last_row() -> None:
    own, arrays = batch(CHOICES, masked=True), unroll(CHOICES, masked=True)
    arrays["obs.legal"][T] = 0
    assert place(own, arrays) == ""
