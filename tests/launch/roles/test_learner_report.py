"""What a learner says of its network at its start, and of its end in order."""

from typing import Any

import pytest

from headrace.launch.config.run_file import Run
from headrace.launch.config.run_sections import StopSection
from headrace.launch.process import runtime
from headrace.launch.roles import learner_report
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.progress import Progress
from headrace.learner.spaces import Leaf, Spaces, discrete

FRAMES = Leaf("camera", "<f4", (9, 9, 3))


def said(caplog: pytest.LogCaptureFixture, config: ModelConfig, *leaves: Leaf) -> list[str]:
    caplog.set_level("INFO")
    spaces = Spaces(leaves, discrete(2))
    learner_report.log_network(config, spaces, build(config, spaces, seed=0))
    return [record.getMessage() for record in caplog.records]


def test_a_picture_that_is_taken_for_numbers_is_named(caplog: pytest.LogCaptureFixture) -> None:
    chosen, taken = said(caplog, ModelConfig(), FRAMES, Leaf("arm", "<f4", (3,)))
    assert chosen == "model.kind = auto: the encoder is mlp"
    assert taken.startswith("camera float32[9, 9, 3] is taken for numbers in a row: an image is")


@pytest.mark.parametrize(
    ("config", "leaf"),
    [
        (ModelConfig(kind="mlp"), FRAMES),  # its owner knows
        (ModelConfig(), Leaf("camera", "|u1", (9, 9, 3))),
        (ModelConfig(), Leaf("cards", "<i8", (2, 2), (3, 3, 3, 3))),
        (ModelConfig(), Leaf("arm", "<f4", (3,))),
    ],
)
def test_other_observations_leave_no_doubt(
    caplog: pytest.LogCaptureFixture, config: ModelConfig, leaf: Leaf
) -> None:
    assert not [line for line in said(caplog, config, leaf) if "taken for numbers" in line]


def ended(stop: StopSection, evaluated: float | None, reason: str = "steps") -> int:
    progress = Progress()
    progress.trained_steps, progress.evaluated = 100, evaluated
    return learner_report.status(Run(stop=stop), progress, reason)


def test_a_goal_by_evaluation_that_nobody_evaluated_is_said_at_the_end(caplog: Any) -> None:
    stop = StopSection(return_=5.0, metric="evaluation")
    assert ended(stop, None) == runtime.LIMIT
    (said,) = caplog.messages
    assert said.startswith('stop.metric is "evaluation", and no evaluation was heard of')
    assert "headrace evaluate" in said


@pytest.mark.parametrize(
    ("stop", "evaluated", "reason", "status"),
    [
        (StopSection(return_=5.0, metric="evaluation"), 3.0, "steps", runtime.LIMIT),
        (StopSection(return_=5.0, metric="evaluation"), None, "stopped", runtime.OK),
        (StopSection(return_=5.0), None, "seconds", runtime.LIMIT),
        (StopSection(), None, "seconds", runtime.OK),
    ],
)
def test_else_nothing_is_said(
    stop: StopSection, evaluated: float | None, reason: str, status: int, caplog: Any
) -> None:
    assert ended(stop, evaluated, reason) == status
    assert caplog.messages == []
