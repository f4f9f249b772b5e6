"""A vector class as a group."""

from typing import Any

import numpy as np

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import probe
from headrace.actors.stepping.bookkeeping import Bookkeeping
from headrace.actors.stepping.groups.group import GroupSpec
from headrace.actors.stepping.groups.vector import VectorGroup
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Frame

POLE = EnvConfig("CartPole-v1")


def test_one_that_wakes_up_late_counts_nowhere() -> None:
    """Hangs in a step, is given up, and answers after all."""
    spaces, failures = probe(POLE), list[EnvFailure]()
    frame, scratch = (Frame.empty(spaces, groups=1, envs=2) for _ in range(2))
    books = Bookkeeping.unshared(groups=1, envs=2)
    made = EnvsSpec(POLE, spaces, groups=1, envs=2, seed=1)
    group = VectorGroup(GroupSpec(made, 0, books, failures.append), frame)
    group.begin()
    group.step(np.zeros(2, np.int64))
    assert books.steps[0] == 1
    shown, spent = frame.obs["obs"].copy(), frame.spent.copy()
    inner = group._vector

    class Late:
        def step(self, actions: Any) -> Any:
            group.abandon(scratch)
            return inner.step(actions)

    group._vector = Late()
    group.step(np.zeros(2, np.int64))
    assert books.steps[0] == 1
    assert (frame.obs["obs"] == shown).all() and (frame.spent == spent).all()
    assert scratch.obs["obs"].any()
    assert not failures
    inner.close()
