"""GAE against published vectors, and against the sum that defines it."""

import json
from pathlib import Path

import pytest
import torch

from headrace.learner.algorithms import vtrace
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import Coefficients, LossBatch, LossInputs, LossNorm
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.distribution import distribution_of
from headrace.learner.models.model import Output
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, discrete

PUBLISHED = json.loads((Path(__file__).parents[2] / "reference" / "values.json").read_text())


@pytest.mark.parametrize("trace", ["1.0", "0.7", "0.4"])
def test_on_policy_the_corrections_of_vtrace_are_gae(trace: str) -> None:
    known = PUBLISHED["gae_rlax"]
    rewards, values, discounts = (
        torch.tensor(known[key], dtype=torch.float64).T
        for key in ("r", "values_T_plus_1", "discount")
    )
    vs, advantages = vtrace.targets(
        log_rhos=torch.zeros_like(rewards),
        rewards=rewards,
        values=values,
        discounts=discounts,
        continues=torch.ones_like(rewards),
        live=torch.ones_like(rewards),
        trace=float(trace),
        rho_clip=1.0,
        c_clip=1.0,
        pg_rho_clip=1.0,
    )
    expected = torch.tensor(known["expected"][trace], dtype=torch.float64).T
    torch.testing.assert_close(vs - values[:-1], expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(advantages, expected, atol=1e-3, rtol=0)


def test_the_targets_are_the_discounted_sum_of_errors() -> None:
    """The sum over k of (gamma lambda)^k times the one-step errors, spelt out."""
    steps, columns = 9, 6
    rng = torch.Generator().manual_seed(7)
    reward = torch.randn(steps, columns, generator=rng)
    value = torch.randn(steps + 1, columns, generator=rng)
    flags = torch.zeros(steps, columns, dtype=torch.uint8)
    flags[2, 0], flags[3, 0] = TERMINATED, DEAD
    flags[4, 1], flags[5, 1] = TRUNCATED, DEAD
    flags[0, 2] = DEAD
    flags[steps - 1, 3] = TRUNCATED
    choices = torch.zeros(steps, columns, dtype=torch.int64)
    given = LossInputs(
        # The clips are V-trace's: of a ratio that is 1 nothing may be cut.
        config=AlgorithmConfig(
            name="ppo", gamma=0.9, trace=0.8, rho_clip=0.3, c_clip=0.2, pg_rho_clip=0.1
        ),
        coefs=Coefficients(0.2, 0.0, 0.0),
        distribution=distribution_of(discrete(3)),
        output=Output(torch.zeros(steps + 1, columns, 3), value),
        # The log-probabilities say nothing: whoever acted is taken at its word.
        batch=LossBatch(choices, -3 * torch.rand(steps, columns, generator=rng), reward, flags),
        norm=LossNorm(steps=1),
    )
    vs, advantages, old = gae_targets(given)
    assert torch.equal(old, value[:-1])
    for column in range(columns):
        for t in range(steps):
            if flags[t, column] & DEAD:
                continue
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                ended = int(flags[k, column])
                if ended & DEAD:
                    break
                beyond = 0.0 if ended & TERMINATED else 0.9 * float(value[k + 1, column])
                total += weight * (float(reward[k, column]) + beyond - float(value[k, column]))
                weight *= 0.9 * 0.8
                if ended:
                    break
            assert advantages[t, column].item() == pytest.approx(total, abs=1e-5)
            expected = total + float(value[t, column])
            assert vs[t, column].item() == pytest.approx(expected, abs=1e-5)
