"""What the network sees, against a plain list of what every environment showed."""

from typing import Any

import numpy as np
import pytest

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD, TERMINATED, Leaf, Spaces, discrete

SPACES = Spaces((Leaf("eye", "|u1", (2, 2), stack=3), Leaf("clock", "<f4", (1,))), discrete(2))


def test_windows_are_the_last_rows_of_the_episode_the_first_one_repeated() -> None:
    frame = Frame.empty(SPACES, groups=2, envs=2)
    stacks = FrameStacks(SPACES, frame)
    rng = np.random.default_rng(0)
    shown: list[list[np.ndarray]] = [[] for _ in range(4)]  # of the running episode
    over = [False] * 4
    for _ in range(60):
        group = int(rng.integers(2))  # groups do not keep step
        for column in range(frame.columns(group).start, frame.columns(group).stop):
            row = rng.integers(0, 256, (2, 2)).astype(np.uint8)
            frame.flags[column] = DEAD if over[column] else 0
            if over[column]:
                shown[column] = []
            over[column] = not over[column] and rng.random() < 0.3
            if over[column]:
                frame.flags[column] = TERMINATED
            shown[column].append(row)
            frame.obs["eye"][column] = row
        stacks.push(group)
        for column in range(frame.columns(group).start, frame.columns(group).stop):
            rows = ([shown[column][0]] * 2 + shown[column])[-3:]
            (window,) = stacks.snapshot(np.array([column]))["eye"]
            np.testing.assert_array_equal(window, rows)
        history = stacks.history(group)["obs.eye"]
        columns = frame.columns(group)
        np.testing.assert_array_equal(
            history, stacks.snapshot(slice(None))["eye"][columns][:, :2].swapaxes(0, 1)
        )


def test_what_was_taken_stays_when_the_environments_go_on() -> None:
    frame = Frame.empty(SPACES, groups=1, envs=2)
    stacks = FrameStacks(SPACES, frame)
    stacks.push(0)
    for rows in (slice(None), np.array([1, 0])):
        frame.obs["clock"][:] = [[1], [2]]
        taken = stacks.snapshot(rows)
        frame.obs["clock"][:] = 9
        frame.obs["eye"][:] = 9
        order = [[1], [2]] if isinstance(rows, slice) else [[2], [1]]
        assert taken["clock"].tolist() == order
        assert not taken["eye"].any()
        newest = stacks.newest(taken, slice(1, 2))
        assert newest["clock"].tolist() == order[1:]
        assert newest["eye"].shape == (1, 2, 2)
    assert list(stacks.history(0)) == ["obs.eye"]


@pytest.mark.parametrize("envs", [1, 3])
def test_arrays_lie_apart_in_one_block(envs: int) -> None:
    """As shared memory must hold them: writing one changes no other."""
    size = Frame.nbytes(SPACES, groups=2, envs=envs)
    memory = bytearray(size)
    frame = Frame.over(memoryview(memory), SPACES, groups=2, envs=envs)
    arrays: list[Any] = [frame.spent, frame.action, frame.reward, frame.flags, *frame.obs.values()]
    for number, array in enumerate(arrays):
        array[...] = number + 1
    for number, array in enumerate(arrays):
        assert (array == number + 1).all()
    again = Frame.over(memoryview(memory), SPACES, groups=2, envs=envs)
    np.testing.assert_array_equal(again.obs["eye"], frame.obs["eye"])


def test_what_is_remembered_belongs_to_an_environment_and_ends_with_its_episode() -> None:
    frame = Frame.empty(SPACES, groups=2, envs=2)
    stacks = FrameStacks(SPACES, frame, memory=3, previous=True)
    for group in range(2):
        stacks.push(group)
    everything = slice(None)
    memory = stacks.memory(everything)
    assert memory is not None and not memory.any()
    assert stacks.snapshot(everything)["previous.choices"].tolist() == [[-1]] * 4
    # Groups act in any order; each row is written where it belongs.
    after = np.arange(12, dtype=np.float32).reshape(4, 3) + 1.0
    rows = np.array([2, 3, 0, 1])
    stacks.acted(rows, np.array([0, 1, 1, 0]), after)
    frame.reward[:] = [0.5, -3.0, 2.0, 0.25]
    frame.flags[:] = [0, DEAD, TERMINATED, DEAD]
    stacks.push(1)
    remembered = stacks.memory(rows)
    assert remembered is not None
    assert remembered.tolist() == [[1, 2, 3], [0, 0, 0], [7, 8, 9], [10, 11, 12]]
    seen = stacks.view(frame.columns(1))
    assert seen["previous.choices"].tolist() == [[0], [-1]]
    assert seen["previous.reward"].tolist() == [1.0, 0.0]
    history = stacks.history(1)
    assert history["memory"].tolist() == [[[1, 2, 3], [0, 0, 0]]]
    assert history["before.action"].tolist() == [[0, -1]]
    assert history["before.reward"].tolist() == [[2.0, 0.0]]


def test_a_network_that_remembers_nothing_is_given_nothing() -> None:
    stacks = FrameStacks(SPACES, Frame.empty(SPACES, groups=1, envs=2))
    assert stacks.memory(slice(None)) is None
    assert stacks.snapshot(slice(None)).keys() == {"eye", "clock"}
