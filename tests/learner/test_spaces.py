"""Actions as plain data: which of their numbers are bounded, squashed and cut."""

import math

import pytest

from headrace.learner.spaces import Action, Part, discrete

INF = math.inf
ARM = Part(("arm",), "float32", (3,), low=(-1.0, -INF, 0.0), high=(1.0, INF, INF))
GEAR = Part(("gear",), "int64", (2,), (2, 3), (0, 0))


def test_a_number_is_bounded_where_both_ends_are() -> None:
    assert ARM.bounded == (True, False, False)
    assert GEAR.bounded == ()


@pytest.mark.parametrize("squash", [False, True])
def test_bounded_numbers_are_squashed_and_the_others_cut_further_out(squash: bool) -> None:
    action = Action((GEAR, ARM), squash=squash)
    assert action.squashed == (squash, False, False)
    assert action.shown == (1.0, 10.0, 10.0)


def test_choices_have_no_numbers() -> None:
    assert discrete(3).squashed == discrete(3).shown == ()
