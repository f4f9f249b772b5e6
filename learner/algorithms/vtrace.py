"""V-trace: value targets and policy-gradient advantages from another policy's experience.

Espeholt et al., 2018, with two facts about the steps kept apart. `discounts` is zero where an
episode terminated: nothing is worth anything beyond. `continues` is zero where an episode ended for
any reason: what follows in time belongs to another episode, so the trace is cut, but a truncated
episode still bootstraps with the value of its true last observation, which is the next row.

Shapes: T steps, B columns, time first.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.learner.models.kernels.accumulate import accumulate


class VTrace(NamedTuple):
    """Holds targets and advantages, both without gradient."""

    vs: Tensor  # [T, B] what the value of each step should be
    pg_advantages: Tensor  # [T, B] what the log-prob of each action is weighted with


@torch.no_grad()
def targets(
    *,
    log_rhos: Tensor,
    rewards: Tensor,
    values: Tensor,
    discounts: Tensor,
    continues: Tensor,
    live: Tensor,
    trace: float,
    rho_clip: float,
    c_clip: float,
    pg_rho_clip: float,
) -> VTrace:
    """Computes the targets of [T, B] steps.

    log_rhos: log of (target policy / behaviour policy) of each action. values: [T+1, B], the last
    row bootstraps. discounts: gamma, 0 where terminated. continues: 1, 0 where the episode ended.
    live: 1, 0 at the step that only resets; its target is its own value, its advantage 0.
    """
    steps = log_rhos.shape[0]
    assert log_rhos.dim() == 2 and values.shape == (steps + 1, log_rhos.shape[1]), values.shape
    rhos = log_rhos.exp()
    td = rewards + discounts * values[1:] - values[:-1]
    # Equation 1 of the paper, summed from the last step to the first: v_s - V(x_s) is this step's
    # delta and, by this factor, what the next step's correction adds.
    carry = discounts * continues * live
    corrections = accumulate(
        deltas=live * rhos.clamp(max=rho_clip) * td, factors=carry * rhos.clamp(max=c_clip) * trace
    )
    # Section 4.2, rho_s (r_s + gamma v_{s+1} - V(x_s)): the next step is worth values[t+1] plus its
    # correction, and td already holds the first half.
    # The correction is weighted with lambda here too: on-policy the advantage is then GAE(lambda).
    advantages = live * rhos.clamp(max=pg_rho_clip) * (td + carry * trace * corrections[1:])
    return VTrace(values[:-1] + corrections[:-1], advantages)
