"""What looks wrong in learning: rules over a run's figures, the cause before its effects. Each is a
pure function that speaks only where healthy runs of every algorithm are silent."""

import math
from collections.abc import Callable, Iterator

from headrace.launch.explain.figures import Figures
from headrace.launch.explain.finding import Finding

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
    elif 0 < loss < 1e-6 and not figures.solved and max(map(abs, _returns(figures))) > 0:
        yield Finding(
            "reward scale",
            f"the value loss is {loss:.1g}: rewards x algorithm.reward_scale ({scale:g}) are"
            " too small to learn from",
            (f"algorithm.reward_scale={_times(scale, 100)}",),
        )


def _entropy_coef(figures: Figures) -> Iterator[Finding]:
    """Speaks where the bonus outweighs what the policy could gain: it stays as random as it
    began."""
    entropy, coef = figures.median("entropy"), _lately(figures.run.algorithm.entropy_coef)
    gain = figures.median("policy_loss")
    if figures.solved or coef is None or not entropy > 0:
        return
    if entropy > 0.97 * max(figures.column("entropy")) and coef * entropy > 10 * abs(gain):
        if coef < 0.05:
            return
        yield Finding(
            "entropy bonus",
            f"the policy is as random as it began (entropy {entropy:.3g}): the bonus outweighs its"
            f" loss ({coef * entropy:.2g} against {abs(gain):.2g})",
            ("algorithm.entropy_coef=0.01",),
        )


def _kl(figures: Figures) -> Iterator[Finding]:
    if figures.solved or figures.run.pacing.max_lag > 8:
        return
    kl = figures.median("kl")
    if kl > 0.1:
        yield Finding(
            "step size",
            f"each update changes the policy a lot (KL {kl:.2g} nats, 0.01 to 0.05 are usual)",
            (_lower_lr(figures, 4),),
        )


def _entropy_gone(figures: Figures) -> Iterator[Finding]:
    entropies = figures.column("entropy")
    if figures.solved or min(entropies) < 0:  # of actions with numbers it may be negative
        return
    entropy = figures.median("entropy")
    if entropy < 0.02 * max(entropies) and not _improves(figures):
        yield Finding(
            "entropy gone",
            f"the policy hardly explores any more (entropy {entropy:.2g} of {max(entropies):.2g})"
            " and does not improve",
            ("algorithm.entropy_coef=0.01", _lower_lr(figures, 4)),
        )


def _lag(figures: Figures) -> Iterator[Finding]:
    lag, most = figures.median("lag_mean"), figures.run.pacing.max_lag
    if lag > 16 and not figures.run.algorithm.replay_share:
        yield Finding(
            "lag",
            f"what is trained on was played {lag:.0f} versions ago",
            (f"pacing.max_lag={min(4, most)}",),
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
    explained, coef = figures.late("explained_variance"), figures.run.algorithm.value_coef
    if figures.solved or not explained or _improves(figures):
        return
    if sum(one <= 0.02 for one in explained) >= _PART * len(explained) and coef < 0.1:
        yield Finding(
            "values",
            f"values explain nothing of the returns (explained variance"
            f" {figures.median('explained_variance'):.2g}), algorithm.value_coef is {coef:g}",
            ("algorithm.value_coef=0.5",),
        )


def _flat(figures: Figures) -> Iterator[Finding]:
    """Speaks of a policy that stays where it began, as nothing moves it."""
    if figures.solved or _improves(figures):
        return
    kl, rho = figures.median("kl"), figures.median("rho_mean")
    if abs(kl) < 1e-5 and abs(rho - 1) < 1e-3:
        yield Finding(
            "flat",
            f"returns are flat ({_returns(figures)[-1]:.4g}) and updates hardly move the policy"
            f" (KL {kl:.1g})",
            (_higher_lr(figures, 100),),
        )


_RULES: tuple[Callable[[Figures], Iterator[Finding]], ...] = (
    _not_finite,
    _stale,
    _reward_scale,
    _entropy_coef,
    _lag,
    _gradient,
    _values,
    _kl,
    _entropy_gone,
    _flat,
)


def _returns(figures: Figures) -> list[float]:
    return figures.column("mean_return") or [0.0]


def _improves(figures: Figures) -> bool:
    """Tells whether returns have risen, or were at the goal already."""
    returns, goal = _returns(figures), figures.run.stop.return_
    quarter = max(1, len(returns) // 4)
    first, last = (sum(part) / quarter for part in (returns[:quarter], returns[-quarter:]))
    spread = max(returns) - min(returns)
    if goal is not None and last >= goal:
        return True
    return spread > 0 and last - first > 0.5 * spread and last - first > 0.2 * abs(first)


def _lately(schedule: object) -> float | None:
    """Returns a setting that is a number; None = it is a schedule."""
    return float(schedule) if isinstance(schedule, int | float) else None


def _lower_lr(figures: Figures, times: float) -> str:
    return f"learner.lr={_lr(figures) / times:.2g}"


def _higher_lr(figures: Figures, times: float) -> str:
    return f"learner.lr={min(_lr(figures) * times, 3e-3):.2g}"


def _lr(figures: Figures) -> float:
    set_to = _lately(figures.run.learner.lr)
    return set_to if set_to is not None else max([*figures.column("lr"), 1e-6])


def _times(value: float, factor: float) -> str:
    return f"{value * factor:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
