"""Stacked observations: what a row sees of the rows before it."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation
from numpy.typing import NDArray
from torch import Tensor

from headrace.learner.batches.frames import begins, observed
from headrace.learner.spaces import (
    DEAD,
    TERMINATED,
    TRUNCATED,
    Action,
    Leaf,
    Part,
    Spaces,
    discrete,
    previous_leaves,
)


def slow(rows: Tensor, flags: Tensor, stack: int) -> Tensor:
    """The rule, said once more: walk back from each row until its episode's first one."""
    length, columns = flags.shape
    out = torch.empty(length + 1, columns, stack, *rows.shape[2:], dtype=rows.dtype)
    for column in range(columns):
        for r in range(length + 1):
            at = r
            for place in reversed(range(stack)):
                out[r, column, place] = rows[at + stack - 1, column]
                begins_here = at > 0 and bool(flags[at - 1, column] & DEAD)
                at = at if begins_here or at == 1 - stack else at - 1
    return out


def batch(spaces: Spaces, flags: Tensor) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    length, columns = flags.shape
    tensors = {
        f"obs.{leaf.name}": torch.randint(
            0, 256, (length + leaf.stack, columns, *leaf.shape), generator=rng
        ).to(getattr(torch, leaf.dtype))
        for leaf in spaces.observation
    }
    return {**tensors, "flags": flags}


def spaces(*stacks: int) -> Spaces:
    shapes = ((3, 2), (), (4,))
    dtypes = ("uint8", "float32", "int64")
    leaves = tuple(
        Leaf(f"leaf{at}", dtypes[at], shapes[at], stack=stack) for at, stack in enumerate(stacks)
    )
    return Spaces(leaves, discrete(2))


ENDS: list[tuple[int, ...]] = [(), (0,), (6,), (2,), (0, 6), (1, 3, 5), (2, 3), tuple(range(7))]


@pytest.mark.parametrize("stacks", [(1,), (2,), (4,), (12,), (4, 1, 2), (1, 4, 4)])
def test_it_is_the_slow_rule(stacks: tuple[int, ...]) -> None:
    flags = torch.zeros(7, len(ENDS), dtype=torch.uint8)
    for column, rows in enumerate(ENDS):
        for row in rows:
            flags[row, column] = DEAD
    # The other flags begin nothing.
    flags[flags == 0] = TERMINATED | TRUNCATED
    described = spaces(*stacks)
    tensors = batch(described, flags)
    seen = observed(tensors, described)
    assert seen.keys() == {leaf.name for leaf in described.observation}
    for leaf in described.observation:
        sent, got = tensors[f"obs.{leaf.name}"], seen[leaf.name]
        assert got.dtype == sent.dtype and got.shape == (8, len(ENDS), *leaf.seen)
        if leaf.stack == 1:
            assert got is sent
        else:
            assert torch.equal(got, slow(sent, flags, leaf.stack))


def test_many_random_batches() -> None:
    described = spaces(4)
    rng = torch.Generator().manual_seed(1)
    for chance in (0.02, 0.2, 0.6):
        flags = (torch.rand(20, 12, generator=rng) < chance).to(torch.uint8) * DEAD
        tensors = batch(described, flags)
        seen = observed(tensors, described)["leaf0"]
        assert torch.equal(seen, slow(tensors["obs.leaf0"], flags, 4))


class Counting(gymnasium.Env[NDArray[np.uint8], int]):
    """A small image that no other step shows; episodes of 1 to 6 steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, 2), np.uint8)
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
        self._shown = 0
        self._left = 0

    def _image(self) -> NDArray[np.uint8]:
        self._shown += 1
        return np.full((3, 2), self._shown % 251, np.uint8)

    def reset(self, **_: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=None)
        self._left = 1 + self._shown * 7 % 6
        return self._image(), {}

    def step(self, _: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._image(), 0.0, self._left == 0, False, {}


def walk(steps: int, stack: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Rows as gymnasium stacks them and flags, in next-step order: a step that only resets."""
    env = FrameStackObservation(Counting(), stack, padding_type="reset")
    rows = [np.array(env.reset()[0])]
    flags = np.zeros(steps, np.uint8)
    done = False
    for t in range(steps):
        if done:
            flags[t] = DEAD
            row, done = env.reset()[0], False
        else:
            row, _, done, _, _ = env.step(0)
            flags[t] = TERMINATED if done else 0
        rows.append(np.array(row))
    return np.stack(rows), flags


@pytest.mark.parametrize("stack", [2, 4])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_it_is_gymnasium_s_stack_across_unrolls(stack: int, length: int) -> None:
    described = Spaces((Leaf("obs", "uint8", (3, 2), stack=stack),), discrete(2))
    unrolls = 24
    stacked, flags = walk(unrolls * length, stack)
    assert np.count_nonzero(flags & DEAD) > 4
    for start in range(0, unrolls * length, length):
        # What travels: the frames before the first row, as the network saw them, then the newest of
        # each row.
        history = stacked[start, :-1]
        rows = np.concatenate([history, stacked[start : start + length + 1, -1]])
        tensors = {
            "obs.obs": torch.from_numpy(rows).unsqueeze(1),
            "flags": torch.from_numpy(flags[start : start + length]).unsqueeze(1),
        }
        seen = observed(tensors, described)["obs"].squeeze(1).numpy()
        np.testing.assert_array_equal(seen, stacked[start : start + length + 1])


# ---- the step before -----------------------------------------------------------------------------

INF = float("inf")
BOX = Part((), "float32", (3,), low=(-2.0, 0.0, -INF), high=(2.0, INF, INF))
CHOICES = Part((), "int64", (2,), (2, 3), (0, 0))


def step_before(action: Action) -> dict[str, Tensor]:
    """Six steps of two columns; the third step of the second column is dead."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 2, *action.shape, generator=rng) * 20.0
    choices = len(action.categories)
    if action.single:
        rows = torch.randint(0, 3, (7, 2), generator=rng)
    else:
        rows[..., :choices] = torch.randint(0, 2, (7, 2, choices), generator=rng).float()
    reward = torch.randn(7, 2, generator=rng) * 2.0
    flags = torch.tensor([[0, 0], [0, TERMINATED], [0, DEAD], [TRUNCATED, 0], [DEAD, 0], [0, 0]])
    return {
        "obs.obs": torch.zeros(7, 2),
        "flags": flags.to(torch.uint8),
        "before.action": rows[:1],
        "action": rows[1:],
        "before.reward": reward[:1],
        "reward": reward[1:],
    }


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("parts", [(CHOICES,), (BOX,), (CHOICES, BOX), discrete(3).parts])
def test_a_row_sees_the_step_before_it_of_its_own_episode(
    parts: tuple[Part, ...], squash: bool
) -> None:
    action = Action(parts, squash=squash)
    described = Spaces((Leaf("obs", "float32", ()),), action)
    tensors = step_before(action)
    seen = observed(tensors, described, previous=True)
    leaves = previous_leaves(described)
    assert seen.keys() == {"obs", *(leaf.name for leaf in leaves)}
    rows = torch.cat([tensors["before.action"], tensors["action"]])
    reward = torch.cat([tensors["before.reward"], tensors["reward"]])
    count = len(action.categories)
    first = {(3, 1), (5, 0)}
    for t in range(7):
        for column in range(2):
            none = (t, column) in first
            row = rows[t, column].reshape(-1).tolist()
            if action.categories:
                expected = [-1] * count if none else [int(choice) for choice in row[:count]]
                assert seen["previous.choices"][t, column].tolist() == expected
            if action.numbers:
                bounded, half, free = row[count:]
                inside = math.tanh(bounded) if squash else min(max(bounded, -1.0), 1.0)
                cut = [min(max(number, -10.0), 10.0) for number in (half, free)]
                numbers = [0.0] * 3 if none else [inside, *cut]
                got = seen["previous.numbers"][t, column].tolist()
                assert got == pytest.approx(numbers, abs=1e-6)
            paid = min(max(float(reward[t, column]), -1.0), 1.0)
            assert float(seen["previous.reward"][t, column]) == (0.0 if none else paid)
    for leaf in leaves:
        assert seen[leaf.name].shape == (7, 2, *leaf.shape)
        assert seen[leaf.name].dtype == getattr(torch, np.dtype(leaf.dtype).name)


def test_an_episode_begins_after_a_dead_step_and_row_0_is_taken_as_it_was_sent() -> None:
    flags = torch.tensor([[DEAD, TERMINATED], [0, DEAD | TRUNCATED], [TRUNCATED, 0]])
    expected = [[False, False], [True, False], [False, True], [False, False]]
    assert begins(flags.to(torch.uint8)).tolist() == expected
