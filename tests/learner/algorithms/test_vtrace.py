"""V-trace against published vectors, the paper's own formula, and numbers worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.learner.algorithms import vtrace

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "reference" / "values.json").read_text()
)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def targets(*, rewards: Tensor, **changed: Any) -> vtrace.VTrace:
    """On-policy, one endless episode, unless told otherwise."""
    usual = {
        "log_rhos": torch.zeros_like(rewards),
        "continues": torch.ones_like(rewards),
        "live": torch.ones_like(rewards),
        "trace": 1.0,
        "rho_clip": 1.0,
        "c_clip": 1.0,
        "pg_rho_clip": 1.0,
    }
    return vtrace.targets(rewards=rewards, **{**usual, **changed})


def reference(name: str) -> dict[str, Tensor]:
    return {
        key: torch.tensor(value, dtype=torch.float64)
        for key, value in REFERENCE[name].items()
        if isinstance(value, list)
    }


@pytest.mark.parametrize("name", ["vtrace_scalable_agent_T5_B1", "vtrace_scalable_agent_T5_B5"])
def test_published_off_policy_vectors(name: str) -> None:
    known = reference(name)
    vs, advantages = targets(
        log_rhos=known["log_rhos"],
        rewards=known["rewards"],
        values=torch.cat([known["values"], known["bootstrap"].unsqueeze(0)]),
        discounts=known["discounts"],
        rho_clip=REFERENCE[name]["clip_rho"],
        pg_rho_clip=REFERENCE[name]["clip_pg_rho"],
    )
    torch.testing.assert_close(vs, known["vs"], atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages, known["pg_advantages"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("columns", [1, 2])
def test_published_on_policy_vectors(columns: int) -> None:
    known = reference(f"vtrace_from_logits_on_policy_T5_B{columns}")
    # The inputs count up: rewards 0, 1, 2 ... row by row, values the same divided by the columns.
    rewards = torch.arange(5 * columns, dtype=torch.float64).reshape(5, columns)
    bootstrap = torch.arange(1, columns + 1, dtype=torch.float64)
    vs, advantages = targets(
        rewards=rewards,
        values=torch.cat([rewards / columns, bootstrap.unsqueeze(0)]),
        discounts=(0.9 / bootstrap).expand(5, columns),
    )
    torch.testing.assert_close(vs, known["vs"], atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages, known["pg_advantages"], atol=1e-6, rtol=0)


def oracle(inputs: dict[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The paper's sum of products, one term at a time; slow and obvious."""
    x = {key: v.numpy() if isinstance(v, Tensor) else v for key, v in inputs.items()}
    rhos = np.exp(x["log_rhos"])
    steps, columns = rhos.shape
    vs, advantages = np.zeros((2, steps, columns))
    for b in range(columns):
        v = x["values"][:, b]
        for s in range(steps):
            vs[s, b] = v[s]
            weight = 1.0
            for t in range(s, steps):
                if not x["live"][t, b]:
                    break
                delta = x["rewards"][t, b] + x["discounts"][t, b] * v[t + 1] - v[t]
                vs[s, b] += weight * min(x["rho_clip"], rhos[t, b]) * delta
                if not x["continues"][t, b]:
                    break
                weight *= x["discounts"][t, b] * x["trace"] * min(x["c_clip"], rhos[t, b])
        for s in range(steps):
            if not x["live"][s, b]:
                continue
            inside = x["continues"][s, b] and s + 1 < steps
            mixed = x["trace"] * vs[s + 1, b] + (1 - x["trace"]) * v[s + 1] if inside else 0.0
            beyond = mixed if inside else v[s + 1]
            gain = x["rewards"][s, b] + x["discounts"][s, b] * beyond - v[s]
            advantages[s, b] = min(x["pg_rho_clip"], rhos[s, b]) * gain
    return vs, advantages


@pytest.mark.parametrize("seed", range(8))
def test_the_papers_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (17, 9)
    ended = rng.random(shape) < 0.25
    dead = np.zeros(shape, dtype=bool)
    for t in range(1, shape[0]):
        dead[t] = ended[t - 1]
        ended[t] &= ~dead[t]
    terminated = ended & (rng.random(shape) < 0.5)
    # Ratios from e^-2.5 to e^2.5 pass every clip below on both sides.
    inputs: dict[str, Any] = {
        "log_rhos": torch.from_numpy(rng.uniform(-2.5, 2.5, shape)),
        "rewards": torch.from_numpy(rng.normal(size=shape)),
        "values": torch.from_numpy(rng.normal(size=(shape[0] + 1, shape[1]))),
        "discounts": torch.from_numpy(0.97 * ~terminated),
        "continues": torch.from_numpy(1.0 - ended),
        "live": torch.from_numpy(1.0 - dead),
        "trace": 0.9,
        "rho_clip": 1.7,
        "c_clip": 1.2,
        "pg_rho_clip": 2.2,
    }
    vs, advantages = vtrace.targets(**inputs)
    expected_vs, expected_advantages = oracle(inputs)
    np.testing.assert_allclose(vs.numpy(), expected_vs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(advantages.numpy(), expected_advantages, rtol=1e-9, atol=1e-9)


# An episode ends with step 1, step 2 only resets, step 3 begins the next one.
TWO_EPISODES = {
    "rewards": column(1, 2, 0, 3),
    "values": column(10, 20, 30, 40, 50),
    "continues": column(1, 0, 1, 1),
    "live": column(1, 1, 0, 1),
}


def test_termination_bootstraps_with_nothing() -> None:
    vs, advantages = targets(**TWO_EPISODES, discounts=column(0.5, 0, 0.5, 0.5))
    # 3 + 0.5 * 50 = 28; the reset keeps its own value; 2 + nothing; 1 + 0.5 * 2.
    assert vs.flatten().tolist() == [2, 2, 30, 28]
    assert advantages.flatten().tolist() == [2 - 10, 2 - 20, 0, 28 - 40]


def test_truncation_bootstraps_with_the_true_last_observation() -> None:
    """Step 1 was cut: row 2 is what the agent would have seen next."""
    vs, advantages = targets(**TWO_EPISODES, discounts=column(0.5, 0.5, 0.5, 0.5))
    # 2 + 0.5 * 30 = 17; 1 + 0.5 * 17 = 9.5. Nothing of the next episode's 28 comes back.
    assert vs.flatten().tolist() == [9.5, 17, 30, 28]
    assert advantages.flatten().tolist() == [9.5 - 10, 17 - 20, 0, 28 - 40]


def test_truncation_ignores_the_correction_of_the_next_row() -> None:
    """An environment without a reset step: row 1 is both, so only its value may be used."""
    vs, advantages = targets(
        rewards=column(1, 3),
        values=column(10, 40, 50),
        discounts=column(0.5, 0.5),
        continues=column(0, 1),
    )
    assert vs.flatten().tolist() == [1 + 0.5 * 40, 3 + 0.5 * 50]
    assert advantages.flatten().tolist() == [21 - 10, 28 - 40]


def test_an_impossible_behaviour_stays_finite() -> None:
    vs, advantages = targets(
        log_rhos=column(1000, -1000),
        rewards=column(1, 1),
        values=column(0, 0, 0),
        discounts=column(1, 1),
    )
    assert vs.flatten().tolist() == [1, 0]
    assert advantages.flatten().tolist() == [1, 0]


def test_the_inputs_stay_as_they_were_and_no_gradient_passes() -> None:
    values = column(0, 1, 2).requires_grad_()
    rewards, log_rhos = column(1, 1), column(math.log(2), 0)
    vs, advantages = targets(
        log_rhos=log_rhos, rewards=rewards, values=values, discounts=column(1, 1)
    )
    assert not vs.requires_grad and not advantages.requires_grad
    assert rewards.flatten().tolist() == [1, 1]
    assert log_rhos.flatten().tolist() == [math.log(2), 0]
