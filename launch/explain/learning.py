"""Finds what looks wrong in learning, by rules over a run's figures, the cause before its effects.
Each is a pure function that speaks only where healthy runs of every algorithm are silent."""

import math
from collections.abc import Callable, Iterator

from headrace.launch.config.algorithm_defaults import LEAST_USES
from headrace.launch.explain.figures import Figures
from headrace.launch.explain.finding import Finding
from headrace.launch.explain.returns import Returns

_LARGE_BONUS = 0.1  # ten times what is usual
_USUAL_LR, _LARGE_LR = 1e-3, 0.02  # more than the second no network here learns by
_LARGE_KL = 0.1  # nats: what one step may change the policy by
_LEAST_KL = 1e-6  # nats: less is rounded away
_LEAST_ENTROPY = 0.02  # nats: 3 times in 1000 another action
_PART = 0.9  # of the lines in which something must be so, to be so all the time


def find(figures: Figures) -> list[Finding]:
    """Returns what looks wrong, causes before effects; [] = nothing stands out."""
    return [finding for rule in _RULES for finding in rule(figures)]


def _not_finite(figures: Figures) -> Iterator[Finding]:
    if figures.nonfinite:
        yield Finding(
            "not finite",
            f"{figures.nonfinite} optimiser steps were skipped: their gradients were not finite",
            (_lower_lr(figures, 4),),
        )


def _stale(figures: Figures) -> Iterator[Finding]:
    trained, stale = (figures.outcomes.get(name, 0.0) for name in ("trained", "stale"))
    if stale > 0.05 * (trained + stale):
        hard = 2 * figures.run.pacing.max_lag_hard
        yield Finding(
            "stale",
            f"{_percent(stale / (trained + stale))} of the unrolls were dropped as too old",
            (f"pacing.max_lag_hard={hard}",),
        )


def _reward_scale(figures: Figures) -> Iterator[Finding]:
    """Speaks of values that are far from 1: their loss drowns the policy's, or vanishes."""
    if figures.run.model.normalise_returns:
        return
    loss, scale = figures.median("value_loss"), figures.run.algorithm.reward_scale
    if loss > 100:
        better = scale / math.sqrt(loss)
        yield Finding(
            "reward scale",
            f"the value loss is {loss:.3g}: values are far above 1",
            (f"algorithm.reward_scale={better:.2g}",),
        )
    elif (
        loss < 1e-6
        and not figures.solved
        and any(Returns.of(figures).values)
        and _no_values(figures)
    ):
        yield Finding(
            "reward scale",
            f"the value loss is below {max(loss, 1e-6):.0e}: rewards x algorithm.reward_scale"
            f" ({scale:g}) are too small for values to learn from",
            (f"algorithm.reward_scale={scale * 1000:.2g}",),
        )


def _entropy_bonus(figures: Figures) -> Iterator[Finding]:
    """Speaks where the bonus outweighs what the policy could gain: it stays as random as it
    began."""
    entropy, coef = figures.median("entropy"), _number(figures.run.algorithm.entropy_coef)
    if figures.solved or coef is None or coef < _LARGE_BONUS or Returns.of(figures).at_goal:
        return
    if entropy > 0.9 * max(figures.column("entropy")) > 0:
        yield Finding(
            "entropy bonus",
            f"the policy stays nearly as random as it began (entropy {entropy:.3g}):"
            f" algorithm.entropy_coef is {coef:g}",
            ("algorithm.entropy_coef=0.01",),
        )


def _step_size(figures: Figures) -> Iterator[Finding]:
    """Speaks of updates that throw the policy about, or have thrown it somewhere for good."""
    if figures.solved or figures.run.pacing.max_lag > 8:
        return
    kl, lr, algorithm = figures.median("kl"), _lr(figures), figures.run.algorithm
    # Between playing and training lie as many of APPO's steps as it uses a batch, and of what
    # IMPALA remembers any number.
    uses = LEAST_USES if algorithm.uses == "auto" else algorithm.uses
    most = _LARGE_KL * uses if algorithm.name == "appo" else _LARGE_KL
    if kl > most and not algorithm.replay_share:
        yield Finding(
            "step size",
            f"each update changes the policy a lot (KL {kl:.2g} nats, 0.01 to 0.05 are usual)",
            (_lower_lr(figures, 4),),
        )
    elif lr > _LARGE_LR and _entropy_is_gone(figures):
        yield Finding(
            "step size",
            f"the policy was thrown to one action (entropy {figures.median('entropy'):.2g}):"
            f" learner.lr is {lr:g}",
            (_lower_lr(figures, 4),),
        )


def _entropy_gone(figures: Figures) -> Iterator[Finding]:
    if _entropy_is_gone(figures) and _lr(figures) <= _LARGE_LR:
        yield Finding(
            "entropy gone",
            f"the policy hardly explores any more (entropy {figures.median('entropy'):.2g} nats)"
            " and does not improve",
            ("algorithm.entropy_coef=0.01", _lower_lr(figures, 4)),
        )


def _lag(figures: Figures) -> Iterator[Finding]:
    lag, most = figures.median("lag_mean"), figures.run.pacing.max_lag
    if lag > 16 and not figures.run.algorithm.replay_share:
        yield Finding(
            "lag",
            f"what is trained on was played {lag:.0f} versions ago",
            ("pacing.max_lag=4",) if most > 4 else (),
            advice="shorter unrolls (unroll.length) of slow environments are younger",
        )


def _gradient(figures: Figures) -> Iterator[Finding]:
    clip, norms = figures.run.learner.grad_clip, figures.late("grad_norm")
    if not clip or not norms:
        return
    above = sum(norm > 10 * clip for norm in norms) / len(norms)
    if above >= _PART:
        usual = figures.median("grad_norm")
        yield Finding(
            "gradient clipped",
            f"every gradient is cut: its norm is {usual:.2g}, learner.grad_clip is {clip:g}",
            (f"learner.grad_clip={usual:.1g}",),
        )


def _values(figures: Figures) -> Iterator[Finding]:
    coef = figures.run.algorithm.value_coef
    if figures.solved or Returns.of(figures).improve or coef >= 0.1:
        return
    if _no_values(figures):
        yield Finding(
            "values",
            f"values explain nothing of the returns (explained variance"
            f" {figures.median('explained_variance'):.2g}), algorithm.value_coef is {coef:g}",
            ("algorithm.value_coef=0.5",),
        )


def _flat(figures: Figures) -> Iterator[Finding]:
    """Speaks of a policy that stays where it began, as nothing moves it."""
    returns = Returns.of(figures)
    if figures.solved or returns.improve or _entropy_is_gone(figures):
        return
    if returns.all_the_same or _lr(figures) >= _USUAL_LR:
        return
    kl, rho = figures.median("kl"), figures.median("rho_mean")
    if abs(kl) <= _LEAST_KL and abs(rho - 1) < 1e-3:
        yield Finding(
            "flat",
            f"returns are flat ({returns.values[-1]:.4g}) and updates hardly move the policy"
            f" (KL {kl:.1g})",
            (_higher_lr(figures, 100),),
        )


def _decays(figures: Figures) -> Iterator[Finding]:
    returns, lr = Returns.of(figures), figures.run.learner.lr
    if returns.decay and not figures.solved:
        until = figures.run.stop.steps or int(figures.lines[-1]["trained_steps"])
        yield Finding(
            "decays",
            f"returns have fallen from {returns.best:.4g} to {returns.last:.4g} (an evaluator"
            " keeps the best weights, in best/)",
            (f"learner.lr=[[0, {_lr(figures):g}], [{until}, 0.0]]",)
            if isinstance(lr, float) or lr == "auto"
            else (),
            advice="let learner.lr fall sooner",
        )


_RULES: tuple[Callable[[Figures], Iterator[Finding]], ...] = (
    _not_finite,
    _stale,
    _reward_scale,
    _entropy_bonus,
    _lag,
    _gradient,
    _values,
    _step_size,
    _entropy_gone,
    _flat,
    _decays,
)


def _no_values(figures: Figures) -> bool:
    """Tells whether values explain nothing of the returns, nearly all the time."""
    explained = figures.late("explained_variance")
    return bool(explained) and sum(one <= 0.02 for one in explained) >= _PART * len(explained)


def _entropy_is_gone(figures: Figures) -> bool:
    """Tells whether the policy always takes one action, and that does not pay. Of actions that are
    numbers the entropy may be negative, and says nothing."""
    if figures.solved or min(figures.column("entropy")) < 0 or Returns.of(figures).improve:
        return False
    return figures.median("entropy") < _LEAST_ENTROPY


def _number(schedule: object) -> float | None:
    """Returns a setting that is a number; None = it is a schedule."""
    return float(schedule) if isinstance(schedule, int | float) else None


def _lower_lr(figures: Figures, times: float) -> str:
    return f"learner.lr={min(_lr(figures) / times, _USUAL_LR):.2g}"


def _higher_lr(figures: Figures, times: float) -> str:
    return f"learner.lr={min(_lr(figures) * times, _USUAL_LR):.2g}"


def _lr(figures: Figures) -> float:
    set_to = _number(figures.run.learner.lr)
    return set_to if set_to is not None else max([*figures.column("lr"), 1e-6])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
