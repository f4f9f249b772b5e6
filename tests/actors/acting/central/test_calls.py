"""A call for the rows of several samplers gives each its own, whatever the size of the call."""

import os

import numpy as np
import pytest
import torch

from headrace.actors.acting.central.calls import JoinedCall, SizedCall
from headrace.actors.acting.central.slot import Array, Layout, Slot
from headrace.actors.acting.policy import Policy
from headrace.learner.spaces import previous_leaves
from tests.actors.acting.central.test_central import CASES, weights

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
MOST = 9  # rows of a sampler


def slot(policy: Policy, case: str, seed: int) -> Slot:
    """Returns a sampler's memory, with something in every row."""
    config, spaces = CASES[case]
    leaves = (*spaces.observation, *(previous_leaves(spaces) if config.previous else ()))
    read = [leaf for leaf in leaves if leaf.name in policy.network.names]
    inputs = tuple(Array(leaf.name, leaf.dtype, tuple(leaf.seen)) for leaf in read)
    layout = Layout(MOST, inputs, policy.numbers, policy.memory)
    fd = os.memfd_create("test")
    os.ftruncate(fd, layout.nbytes)
    made, dice = layout.over(fd), np.random.default_rng(seed)
    os.close(fd)
    for leaf in read:
        there = made.inputs[leaf.name]
        there[:] = 1 if leaf.mask else dice.uniform(0, 9, there.shape).astype(there.dtype)
    made.before[:] = dice.normal(size=made.before.shape)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_a_call_of_any_size_says_what_the_network_does(case: str, device: str) -> None:
    config, spaces = CASES[case]
    plain, policy = (Policy(config, spaces, seed=3, device=device) for _ in range(2))
    joined, sized = JoinedCall(plain), SizedCall(policy, device)
    ours, theirs = ([slot(plain, case, seed) for seed in range(3)] for _ in range(2))
    off = 1e-5 if device == "cpu" else 1e-3  # another kernel for another number of rows
    for version in (1, 2):
        blob = weights(case, version)
        plain.load(blob)
        policy.load(blob)
        for rows in ((1, 0, 0), (5, 3, 1), (9, 9, 9), (2, 1, 7), *[(4, 9, 2)] * 5):
            asked = [at for at in range(3) if rows[at]]
            joined([(ours[at], rows[at]) for at in asked])
            sized([(theirs[at], rows[at]) for at in asked])
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(other.params, one.params, rtol=off, atol=off)
                np.testing.assert_allclose(other.after, one.after, rtol=off, atol=off)
    assert sorted(sized._sizes) == [8, 16, 32]
    graph = sized._sizes[16]._graph
    assert graph.captured == (device == "cuda")


def test_a_sampler_s_other_rows_stay() -> None:
    policy = Policy(*CASES["memory"], seed=3)
    for call in (JoinedCall(policy), SizedCall(policy, "cpu")):
        mine = slot(policy, "memory", 1)
        mine.params[:], mine.after[:] = 7.0, 8.0
        call([(mine, 4)])
        assert (mine.params[4:] == 7.0).all()
        assert (mine.after[4:] == 8.0).all()
        assert (mine.params[:4] != 7.0).all()
