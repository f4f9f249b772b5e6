"""The diagnosis of a diverged run from its figures: the likeliest cause, and what to try. Pure."""

import math
from typing import NamedTuple

from headrace.learner.config import AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig

# Rewards and values in the loss learn fastest near 1; beyond this they are to blame.
_LARGE = 1e4
# KL(behaviour, policy) of a last step that went too far, and the entropy of a policy without dice.
_FAR_KL, _NO_ENTROPY = 1.0, 1e-3


class Figures(NamedTuple):
    """Holds what is known of the steps before the end; NaN = unknown."""

    reward: float = math.nan  # largest |reward x reward_scale| of the step that is not finite
    value: float = math.nan  # largest |value| the network gave for it
    loss: float = math.nan  # the value loss of it, the term that overflows first
    entropy: float = math.nan  # of the last finite step
    kl: float = math.nan  # KL(behaviour, policy) of that


def diagnosis(figures: Figures, algorithm: AlgorithmConfig, learner: LearnerConfig) -> str:
    """Returns it in words: cause, figures, advice."""
    cause, advice = diagnose(figures, algorithm, learner)
    return f"{cause}{_words(figures)}; {advice}, and start again"


def diagnose(
    figures: Figures, algorithm: AlgorithmConfig, learner: LearnerConfig
) -> tuple[str, str]:
    """Returns the likeliest cause ("" = the figures do not tell) and what to try."""
    lr = f" ({learner.lr:g})" if isinstance(learner.lr, float) else ""
    clip = f"learner.grad_clip ({learner.grad_clip:g})"
    smaller = f"lower learner.lr{lr} or {clip if learner.grad_clip else 'set learner.grad_clip'}"
    if figures.reward > _LARGE:
        scale = f"lower algorithm.reward_scale ({algorithm.reward_scale:g})"
        return "the rewards are too large: ", f"{scale} or set algorithm.reward_clip"
    if figures.value > _LARGE:
        return "the values are too large: ", smaller
    if figures.kl > _FAR_KL:
        return "the policy has moved too far in one step: ", smaller
    if 0 <= figures.entropy < _NO_ENTROPY:
        return "the policy's entropy is gone: ", f"raise algorithm.entropy_coef, or {smaller}"
    return "", smaller


def _words(figures: Figures) -> str:
    last = {"entropy": figures.entropy, "KL": figures.kl}
    before = ", ".join(f"{name} {n:.3g}" for name, n in last.items() if not math.isnan(n))
    before = f"before it {before}" if before else "no step was finite"
    if math.isnan(figures.reward) and math.isnan(figures.value):
        return before
    return (
        f"largest |reward x reward_scale| {figures.reward:.3g}, largest |value|"
        f" {figures.value:.3g}, value loss {figures.loss:.3g}; {before}"
    )
