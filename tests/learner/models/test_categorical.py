"""The action distribution against torch.distributions and against counting."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from headrace.learner.models import categorical

EXTREME = torch.tensor([[0.0, -1000.0], [0.0, 1000.0], [-1000.0, -1000.0]])


def random_logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(seed))


def test_log_prob_and_entropy() -> None:
    logits = random_logits(0)
    action = torch.arange(35).reshape(7, 5) % 6
    known = Categorical(logits=logits)
    logp = known.log_prob(action)  # type: ignore[no-untyped-call]
    entropy = known.entropy()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(categorical.log_prob(logits, action), logp)
    both = categorical.log_prob_and_entropy(logits, action)
    torch.testing.assert_close(both, (logp, entropy))


def test_kl() -> None:
    p, q = random_logits(1), random_logits(2)
    known = kl_divergence(Categorical(logits=p), Categorical(logits=q))
    torch.testing.assert_close(categorical.kl(p, q), known)
    assert (categorical.kl(p, q) > 0.01).all()
    assert categorical.kl(p, p).abs().max() == 0


def test_extreme_logits_have_finite_values_and_gradients() -> None:
    logits = EXTREME.clone().requires_grad_()
    action = torch.tensor([0, 1, 0])
    logp, entropy = categorical.log_prob_and_entropy(logits, action)
    divergence = categorical.kl(logits, torch.zeros(3, 2))
    (gradient,) = torch.autograd.grad((logp + entropy + divergence).sum(), logits)
    half = float(np.log(2))
    torch.testing.assert_close(entropy.detach(), torch.tensor([0, 0, half]))
    torch.testing.assert_close(divergence.detach(), torch.tensor([half, half, 0]))
    torch.testing.assert_close(gradient, torch.tensor([[0, 0], [0, 0], [0.5, -0.5]]))


@pytest.mark.parametrize("actions", [2, 3, 18])
def test_samples_come_as_often_as_they_should(actions: int) -> None:
    rng = np.random.default_rng(actions)
    row = rng.normal(size=actions).astype(np.float32)
    draws = 100_000
    action, logp = categorical.sample(np.tile(row, (draws, 1)), rng)
    expected = torch.log_softmax(torch.from_numpy(row), -1).numpy()
    p = np.exp(expected)
    share = np.bincount(action, minlength=actions) / draws
    # Five standard deviations of a share.
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / draws)).all()
    np.testing.assert_allclose(logp, expected[action], atol=1e-6)
    assert action.dtype == np.int64 and logp.dtype == np.float32


def test_every_row_is_sampled_from_its_own_logits() -> None:
    wanted = np.arange(60) % 6
    logits = np.full((60, 6), -50, dtype=np.float32)
    logits[np.arange(60), wanted] = 50
    action, logp = categorical.sample(logits, np.random.default_rng(0))
    np.testing.assert_array_equal(action, wanted)
    np.testing.assert_allclose(logp, 0, atol=1e-6)


def test_few_logits_take_another_way_to_the_same_draws() -> None:
    """Row by row they are few, together they are many."""
    logits = (3 * np.random.default_rng(1).normal(size=(400, 4))).astype(np.float32)
    many = categorical.sample(logits, np.random.default_rng(7))
    rng = np.random.default_rng(7)
    few = [categorical.sample(row[None], rng) for row in logits]
    np.testing.assert_array_equal([int(action[0]) for action, _ in few], many[0])
    np.testing.assert_allclose([float(logp[0]) for _, logp in few], many[1], atol=1e-6)
    assert [array.dtype.name for array in few[0]] == ["int64", "float32"]


class LargestDraw(np.random.Generator):
    """Always draws the largest number below one."""

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, np.nextafter(1, 0))


class SmallestDraw(np.random.Generator):
    """Always draws zero."""

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return np.zeros(size)


@pytest.mark.parametrize("draw", [LargestDraw, SmallestDraw])
def test_an_impossible_action_is_never_drawn(draw: type[np.random.Generator]) -> None:
    logits = np.array([[-1000, 0.3, -1000], [-1000, -0.7, -1000]], dtype=np.float32)
    action, logp = categorical.sample(logits, draw(np.random.PCG64(0)))
    np.testing.assert_array_equal(action, [1, 1])
    np.testing.assert_allclose(logp, 0, atol=1e-6)


def test_the_same_seed_draws_the_same_actions() -> None:
    logits = random_logits(3)[0].numpy()
    first, second = (categorical.sample(logits, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
