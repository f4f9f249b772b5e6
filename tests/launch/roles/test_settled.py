"""Checks what a learner trains by where its run says "auto": numbers, and lines that say so."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.launch.config import run_file
from headrace.launch.roles.learner_parts import LearnerParts
from headrace.learner.spaces import Leaf, Spaces, discrete

BOARD = Leaf("obs", "uint8", (10, 10, 4))
NUMBERS = Leaf("obs", "float32", (4,))


def parts(
    *leaves: Leaf, sets: Sequence[str] = (), critic: Sequence[str] = (), record: bool = False
) -> LearnerParts:
    run = run_file.build({"algorithm": {"name": "ppo"}}, sets, source="bare")
    nothing: Any = None
    options: Any = SimpleNamespace(record=record)
    spaces = Spaces(leaves, discrete(2), critic=tuple(critic))
    return LearnerParts(run, options, nothing, nothing, spaces, nothing, nothing)


@pytest.mark.parametrize(
    ("leaf", "lr", "minibatches", "kind"), [(BOARD, 1e-3, 8, "grid"), (NUMBERS, 3e-4, 32, "mlp")]
)
def test_ppo_steps_by_what_it_sees(
    leaf: Leaf, lr: float, minibatches: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    algorithm, learner = parts(leaf).settled()
    assert (learner.lr, algorithm.minibatches, algorithm.gamma) == (lr, minibatches, 0.99)
    assert f"learner.lr is {lr}: the network is {kind}" in caplog.messages
    assert f"algorithm.minibatches is {minibatches}: the network is {kind}" in caplog.messages


def test_a_number_stays_and_needs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = ["learner.lr=0.002", "algorithm.minibatches=3", "algorithm.gamma=0.9"]
    given += ["algorithm.trace=0.8", "algorithm.entropy_coef=0.1"]
    algorithm, learner = parts(BOARD, sets=given).settled()
    assert (learner.lr, algorithm.minibatches, algorithm.gamma) == (0.002, 3, 0.9)
    assert (algorithm.trace, algorithm.entropy_coef) == (0.8, 0.1)
    assert not caplog.messages


def test_what_the_critic_alone_sees_is_no_picture() -> None:
    state = Leaf("state", "uint8", (10, 10, 4))
    assert parts(NUMBERS, state).settled()[1].lr == pytest.approx(1e-3)
    assert parts(NUMBERS, state, critic=["state"]).settled()[1].lr == pytest.approx(3e-4)


@pytest.mark.parametrize("record", [False, True])
def test_what_is_recorded_is_stepped_part_by_part(record: bool) -> None:
    _, learner = parts(NUMBERS, record=record).settled()
    assert (learner.graph, learner.compile) == ((False, False) if record else ("auto", "auto"))
