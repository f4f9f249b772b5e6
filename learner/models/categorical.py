"""The distribution over A discrete actions, given by finite logits [..., A].

The learner's half is torch and differentiable; the sampler's half is numpy, because there the
batches are small and the cost is the number of calls.
"""

import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

# Up to this many logits plain Python is faster than a dozen calls of numpy.
_FEW = 16


def log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Returns the log-probability [...] of the actions [...]."""
    return _pick(torch.log_softmax(logits, dim=-1), action)


def log_prob_and_entropy(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the same, and the entropy [...] in nats, for the price of one normalisation."""
    log_probs = torch.log_softmax(logits, dim=-1)
    # exp underflows to 0 long before the finite log-prob could make the product or its gradient
    # undefined.
    return _pick(log_probs, action), -(log_probs.exp() * log_probs).sum(-1)


def kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Returns KL(p || q) [...], never below zero but for rounding."""
    log_p = torch.log_softmax(p_logits, dim=-1)
    log_q = torch.log_softmax(q_logits, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def sample(logits: FloatArray, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draws an action from each row of [B, A]; returns the actions and their log-probs, both [B].

    Inverse transform: the action is the number of cumulated weights that the draw has passed. The
    last weight is left out of the count, so an action beyond A - 1 cannot come out.
    """
    if logits.size <= _FEW:
        return _sample_few(logits, rng)
    shifted = logits - logits.max(axis=1, keepdims=True)
    cumulated = np.exp(shifted).cumsum(axis=1)
    total = cumulated[:, -1]
    # The product with a float64 draw below 1 stays below the float32 total, so an action whose
    # weight has vanished is never chosen.
    passed = rng.random(len(logits)) * total
    action = (cumulated[:, :-1] <= passed[:, None]).sum(axis=1, dtype=np.int64)
    logp = shifted[np.arange(len(logits)), action] - np.log(total)
    return action, logp


def _sample_few(logits: FloatArray, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Does the same for so few numbers that calls of numpy would cost more than the work. It draws
    the same actions: rng gives one number for each row either way."""
    actions, logps = [], []
    for row, draw in zip(logits.tolist(), rng.random(len(logits)).tolist(), strict=True):
        peak = max(row)
        cumulated = list(accumulate(math.exp(logit - peak) for logit in row))
        total = cumulated[-1]
        action = bisect_right(cumulated, draw * total)
        if action == len(row):  # the product was rounded up to the total
            action = row.index(peak)
        actions.append(action)
        logps.append(row[action] - peak - math.log(total))
    return np.array(actions, np.int64), np.array(logps, np.float32)


def _pick(log_probs: Tensor, action: Tensor) -> Tensor:
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
