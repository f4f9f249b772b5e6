"""The shared memory of one sampler: both ends see the same, and nothing lies over anything."""

import os

import numpy as np
import pytest

from headrace.actors.acting.central.slot import Array, Layout

LAYOUT = Layout(
    3,
    (Array("image", "|u1", (5, 7)), Array("one", "<f8", ()), Array("none", "<f4", (0,))),
    params=6,
    memory=4,
)


def memory(layout: Layout) -> int:
    fd = os.memfd_create("test")
    os.ftruncate(fd, layout.nbytes)
    return fd


@pytest.mark.parametrize("layout", [LAYOUT, Layout(1, LAYOUT.inputs, params=1, memory=0)])
def test_both_ends_see_the_same_in_places_of_their_own(layout: Layout) -> None:
    fd = memory(layout)
    ours, theirs = layout.over(fd), layout.over(fd)
    os.close(fd)
    arrays = [*ours.inputs.values(), *ours[1:]]
    for number, array in enumerate(arrays, start=1):
        array[...] = number
    seen = [*theirs.inputs.values(), *theirs[1:]]
    for number, array in enumerate(seen, start=1):
        assert (array == number).all()
        assert len(array) == layout.rows
        assert array.ctypes.data % 64 == 0 or not array.size
    assert [array.shape[1:] for array in seen] == [
        *[array.shape for array in layout.inputs],
        (layout.memory,),
        (layout.params,),
        (layout.memory,),
    ]
    assert {name: array.dtype for name, array in theirs.inputs.items()} == {
        array.name: np.dtype(array.dtype) for array in layout.inputs
    }


def test_memory_that_is_too_small_or_too_large_does_not_fit() -> None:
    assert LAYOUT.fits(LAYOUT.nbytes)
    assert not LAYOUT.fits(LAYOUT.nbytes - 1)
    huge = Layout(1 << 20, (Array("image", "|u1", (84, 84)),), params=1, memory=0)
    assert not huge.fits(1 << 40)
