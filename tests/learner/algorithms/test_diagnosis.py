"""The line that ends a diverged run: which cause the figures tell, and what to try."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.broker.errors import DivergedError
from headrace.learner.algorithms.diagnosis import Figures, diagnose
from headrace.learner.config import AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model
from tests.learner.test_train import learn

NAN = math.nan


@pytest.mark.parametrize(
    ("figures", "cause", "advice"),
    [
        (Figures(1e30, 0.1, math.inf), "rewards are too large", "algorithm.reward_scale (1)"),
        (Figures(math.inf, 0.1, NAN), "rewards are too large", "algorithm.reward_clip"),
        (Figures(1.0, 1e9, math.inf), "values are too large", "learner.lr (0.0006)"),
        (Figures(1.0, 1.0, NAN, 0.6, 12.0), "moved too far", "learner.grad_clip (40)"),
        (Figures(1.0, 1.0, NAN, 1e-6, 0.1), "entropy is gone", "algorithm.entropy_coef"),
        (Figures(1.0, 1.0, NAN, 0.6, 0.1), "", "lower learner.lr (0.0006) or"),
        (Figures(), "", "lower learner.lr (0.0006) or"),
    ],
)
def test_the_cause(figures: Figures, cause: str, advice: str) -> None:
    told, tried = diagnose(figures, AlgorithmConfig(), LearnerConfig())
    assert (cause in told, bool(told)) == (True, bool(cause))
    assert advice in tried


def test_what_is_off_is_to_be_set() -> None:
    config = LearnerConfig(lr=((0, 1e-3), (100, 0.0)), grad_clip=0.0)
    assert diagnose(Figures(), AlgorithmConfig(), config)[1] == (
        "lower learner.lr or set learner.grad_clip"
    )


def test_the_figures_are_those_of_the_step(tmp_path: Path) -> None:
    scaled = AlgorithmConfig(reward_scale=1e30)
    with pytest.raises(DivergedError, match=r"reward_scale\| \d(\.\d+)?e\+30, .*no step was fin"):
        learn(tmp_path, 30, algorithm=scaled)
    assert not (tmp_path / "checkpoints").exists()


def test_ruined_weights_reach_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose gradients were finite may make weights that are not."""
    monkeypatch.setattr("headrace.learner.step.host_steps.after_step", _ruin)
    with pytest.raises(DivergedError, match=r"not finite .*before it entropy 0.6"):
        learn(tmp_path, 3)
    assert not (tmp_path / "checkpoints").exists()


def _ruin(parts: Any, _loss: Any) -> bool:
    model: Model = parts.model
    parts.progress.learner_steps += 1
    if parts.progress.learner_steps == 2:
        model.value_head.bias.data.fill_(math.inf)
    return False


def test_a_ruined_optimiser_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be passed over as damaged at the next start."""
    step = torch.optim.Adam.step

    def overflow(self: Any) -> Any:
        step(self)
        next(iter(self.state.values()))["exp_avg_sq"].fill_(math.inf)

    monkeypatch.setattr(torch.optim.Adam, "step", overflow)
    with pytest.raises(DivergedError, match=r"optimiser's state is not finite \(0.exp_avg_sq\)"):
        learn(tmp_path, 3)
    assert not (tmp_path / "checkpoints").exists()
