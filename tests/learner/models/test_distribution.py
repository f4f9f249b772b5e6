"""Distributions over every kind of action, against torch.distributions, integrals and counting."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform

from headrace.learner.models import categorical
from headrace.learner.models.distribution import Distribution, distribution_of
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.spaces import Action, Part, discrete

INF = math.inf
SIZES = (3, 5, 2)
# Three choices, then four numbers: two bounded, one without bounds, one with a single bound.
PARTS = (
    Part(("hand",), "int64", (2,), (3, 5), (0, 1)),
    Part(("arm",), "float32", (3,), low=(-1.0, 0.0, -INF), high=(1.0, 4.0, INF)),
    Part(("lamp",), "int8", (1,), (2,), (0,)),
    Part(("depth",), "float32", (), low=(0.0,), high=(INF,)),
)
MIXED, SQUASHED = Action(PARTS), Action(PARTS, squash=True)
EVEN = Action((Part((), "int64", (4,), (3, 3, 3, 3), (0, 0, 0, 0)),))
BOX = Action((Part((), "float32", (2,), low=(-1.0, -2.0), high=(1.0, 2.0)),))
TANH = Action(BOX.parts, squash=True)
ACTIONS = [discrete(4), EVEN, BOX, TANH, MIXED, SQUASHED]
NAMES = ["single", "even", "box", "tanh", "mixed", "squashed"]
EVERY = pytest.mark.parametrize("action", ACTIONS, ids=NAMES)


def random_params(known: Distribution, seed: int, *lead: int) -> Tensor:
    """Within what log-stds are clamped to."""
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, known.params, generator=dice).clamp(-1.9, 1.9)


def drawn(action: Action, params: Tensor, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    flat = params.detach().reshape(-1, params.shape[-1]).numpy()
    return distribution_of(action).sample(flat, np.random.default_rng(seed))


def normals(action: Action, params: Tensor) -> Normal:
    count = action.numbers
    mean = params[..., -2 * count : -count]
    return Normal(mean, params[..., -count:].exp())


def numbers_of(action: Action, params: Tensor) -> list[Any]:
    """torch's distribution of each number, over what the density is of."""
    gauss, found = normals(action, params), []
    bounds = [
        math.isfinite(low) and math.isfinite(high)
        for part in action.parts
        for low, high in zip(part.low, part.high, strict=True)
    ]
    for at, bounded in enumerate(bounds):
        one: Any = Normal(gauss.loc[..., at], gauss.scale[..., at])
        if action.squash and bounded:
            one = TransformedDistribution(one, [TanhTransform(cache_size=1)])
        found.append(one)
    return found


def oracle_log_prob(action: Action, params: Tensor, rows: Tensor) -> Tensor:
    rows = rows.unsqueeze(-1) if action.single else rows
    total, at = torch.zeros(rows.shape[:-1]), 0
    for place, n in enumerate(action.categories):
        known = Categorical(logits=params[..., at : at + n])
        total = total + known.log_prob(rows[..., place])  # type: ignore[no-untyped-call]
        at += n
    for place, one in enumerate(numbers_of(action, params) if action.numbers else []):
        u = rows[..., len(action.categories) + place]
        value = u.tanh() if isinstance(one, TransformedDistribution) else u
        if isinstance(one, TransformedDistribution):
            # The exact inverse, as torch keeps it of what was sampled.
            one.transforms[0]._cached_x_y = (u, value)  # type: ignore[assignment]
        total = total + one.log_prob(value)
    return total


def entropy_of(action: Action, params: Tensor) -> Tensor:
    """It is that of the parameters; any action will do."""
    rows = torch.zeros(*params.shape[:-1], *action.shape, dtype=getattr(torch, action.dtype))
    return distribution_of(action).log_prob_and_entropy(params, rows)[1]


def test_parameters_are_counted() -> None:
    assert [distribution_of(action).params for action in ACTIONS] == [4, 12, 4, 4, 18, 18]


@pytest.mark.slow
@EVERY
def test_log_prob(action: Action) -> None:
    known = distribution_of(action)
    params = random_params(known, 1, 6, 7)
    rows = torch.from_numpy(drawn(action, params)[0]).reshape(6, 7, *action.shape)
    logp, entropy = known.log_prob_and_entropy(params, rows)
    expected = oracle_log_prob(action, params, rows)
    torch.testing.assert_close(logp, expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(known.log_prob(params, rows), logp)
    torch.testing.assert_close(entropy_of(action, params), entropy)


@pytest.mark.parametrize("action", [discrete(4), EVEN, BOX, MIXED])
def test_entropy(action: Action) -> None:
    params = random_params(distribution_of(action), 2, 6, 7)
    at, expected = 0, torch.zeros(6, 7)
    for n in action.categories:
        expected = expected + Categorical(logits=params[..., at : at + n]).entropy()  # type: ignore[no-untyped-call]
        at += n
    if action.numbers:
        expected = expected + normals(action, params).entropy().sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy_of(action, params), expected)


@EVERY
def test_kl(action: Action) -> None:
    """Squashing changes nothing: it is the same function of both."""
    known = distribution_of(action)
    p, q = random_params(known, 3, 5), random_params(known, 4, 5)
    at, expected = 0, torch.zeros(5)
    for n in action.categories:
        both = (Categorical(logits=x[..., at : at + n]) for x in (p, q))
        expected = expected + kl_divergence(*both)
        at += n
    if action.numbers:
        expected = expected + kl_divergence(normals(action, p), normals(action, q)).sum(-1)
    torch.testing.assert_close(known.kl(p, q), expected)
    assert known.kl(p, p).abs().max() < 1e-6


# ---- squashed numbers ------------------------------------------------------------------------

ONE = Action((Part((), "float32", (1,), low=(-1.0,), high=(1.0,)),), squash=True)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.2, 0.3), (0.0, 0.6)])
def test_the_squashed_density_and_entropy_by_integration(mean: float, log_std: float) -> None:
    """Over a in (-1, 1), finely: the density is 1 in all, and -p log p is the entropy."""
    known = distribution_of(ONE)
    # Finer towards the ends, where the density of a wide Gaussian rises.
    u = torch.linspace(-9, 9, 400_001, dtype=torch.float64)
    a = u.tanh()
    params = torch.tensor([mean, log_std], dtype=torch.float64)
    logp = known.log_prob(params.expand(len(u), 2), u.unsqueeze(-1))
    density = logp.exp()
    assert float(torch.trapezoid(density, a)) == pytest.approx(1, abs=1e-5)
    entropy = float(torch.trapezoid(-density * logp, a))
    assert float(entropy_of(ONE, params.float())) == pytest.approx(entropy, abs=2e-4)


def test_the_squashed_entropy_is_differentiated() -> None:
    params = torch.tensor([0.6, -0.4], requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy_of(ONE, params), params)
    step = 1e-2
    for at in range(2):
        moved = torch.zeros(2)
        moved[at] = step
        with torch.no_grad():
            slope = (entropy_of(ONE, params + moved) - entropy_of(ONE, params - moved)) / (2 * step)
        assert float(gradient[at]) == pytest.approx(float(slope), abs=1e-3)


@pytest.mark.parametrize("log_std", [*LOG_STD, -9.0, 1.9, 0.0])
def test_inside_the_bounds_a_deviation_has_its_own_gradient(log_std: float) -> None:
    """Against central differences of the same in float64 from torch.distributions."""
    box = Action(BOX.parts[:1])
    params = torch.tensor([0.3, -0.2, log_std, log_std], requires_grad=True)
    row = torch.tensor([0.3 + math.exp(log_std), -0.2 - 2 * math.exp(log_std)])
    known = distribution_of(box)
    (found,) = torch.autograd.grad(known.log_prob(params, row), params)

    def at(shift: float) -> float:
        scale = torch.full((2,), math.exp(log_std + shift), dtype=torch.float64)
        mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
        one: Any = Normal(mean, scale)
        return float(one.log_prob(row.double()).sum())

    expected = (at(1e-5) - at(-1e-5)) / 2e-5
    assert float(found[2:].sum()) == pytest.approx(expected, rel=1e-3)


def test_beyond_the_bounds_only_the_way_back_has_a_gradient() -> None:
    """The entropy pulls a deviation up, its negative down, by 1 each: the closed form."""
    action = Action(BOX.parts)
    least, most = LOG_STD
    for told, up in ((least - 3, True), (most + 3, True), (least - 3, False), (most + 3, False)):
        params = torch.tensor([0.0, 0.0, told, told], requires_grad=True)
        loss = -entropy_of(action, params) if up else entropy_of(action, params)
        used = min(max(told, least), most)
        entropy = 2 * (used + 0.5 * math.log(2 * math.pi * math.e))
        assert loss.item() == pytest.approx(-entropy if up else entropy, rel=1e-5)
        (gradient,) = torch.autograd.grad(loss, params)
        inward = up == (told < least)
        assert gradient.tolist() == [0, 0, *([-1.0 if up else 1.0] * 2 if inward else [0, 0])]


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1])
def test_a_deviation_under_a_lasting_pull_stays_near_its_bound_and_returns(bound: int) -> None:
    action, direction = Action(BOX.parts), (-1, 1)[bound]
    head = torch.nn.Linear(3, distribution_of(action).params)
    dice = torch.Generator().manual_seed(0)
    opt = torch.optim.Adam(head.parameters(), lr=0.03)
    farthest, back = 0.0, 0
    for step in range(1500):
        params = head(torch.randn(16, 3, generator=dice))
        told = float(params.detach()[:, 2:].mean())
        farthest = max(farthest, direction * (told - LOG_STD[bound]))
        if step >= 1400:  # now it is to come back
            back = back or (step - 1400 if direction * (told - LOG_STD[bound]) < -0.1 else 0)
        pull = direction if step < 1400 else -direction
        opt.zero_grad()
        (-pull * entropy_of(action, params).mean()).backward()  # type: ignore[no-untyped-call]
        opt.step()
    assert 0 <= farthest < 0.5
    assert 0 < back < 60


def test_only_bounded_numbers_are_squashed() -> None:
    clipped, squashed = distribution_of(MIXED), distribution_of(SQUASHED)
    params, row = random_params(clipped, 5, 1), torch.tensor([[0.0, 1.0, 1.0, 0.5, -0.3, 2.0, 3.0]])
    less = sum(math.log(1 - math.tanh(u) ** 2) for u in (0.5, -0.3))
    difference = float(squashed.log_prob(params, row) - clipped.log_prob(params, row))
    assert difference == pytest.approx(-less, abs=1e-5)


def test_far_out_everything_is_finite() -> None:
    """Means far beyond the bounds, and log-stds beyond what they are clamped to."""
    known = distribution_of(TANH)
    raw = [[50.0, -50.0, 30.0, -30.0], [0.0, 300.0, -30.0, 30.0]]
    params = torch.tensor(raw, requires_grad=True)
    rows, logp = drawn(TANH, params)
    assert np.isfinite(rows).all() and np.isfinite(logp).all()
    both = known.log_prob_and_entropy(params, torch.from_numpy(rows))
    kl = known.kl(params, torch.zeros(2, 4))
    (gradient,) = torch.autograd.grad((both[0] + both[1] + kl).sum(), params)
    assert all(x.isfinite().all() for x in (*both, kl, gradient))


# ---- sampling --------------------------------------------------------------------------------


@EVERY
def test_a_sample_has_the_log_prob_that_the_learner_finds(action: Action) -> None:
    known = distribution_of(action)
    params = random_params(known, 6, 500)
    rows, logp = drawn(action, params)
    assert (rows.dtype.name, rows.shape) == (action.dtype, (500, *action.shape))
    assert (logp.dtype.name, logp.shape) == ("float32", (500,))
    found = known.log_prob(params, torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(logp, found, atol=1e-5, rtol=1e-5)


def test_choices_come_as_often_as_they_should() -> None:
    known, draws = distribution_of(MIXED), 60_000
    params = random_params(known, 7, 1).expand(draws, -1)
    rows, _ = drawn(MIXED, params)
    at = 0
    for place, n in enumerate(SIZES):
        p = params[0, at : at + n].softmax(-1).numpy()
        counts = np.bincount(rows[:, place].astype(np.int64), minlength=n)
        assert counts.size == n
        chi_square = float((np.square(counts - draws * p) / (draws * p)).sum())
        assert chi_square < 30  # at 4 degrees of freedom once in 200 000 times
        at += n


def test_choices_and_numbers_are_independent() -> None:
    draws = 60_000
    params = torch.zeros(1, distribution_of(MIXED).params).expand(draws, -1)
    rows, _ = drawn(MIXED, params)
    apart = np.corrcoef(rows.T) - np.eye(7)
    assert np.abs(apart).max() < 5 / math.sqrt(draws)


@pytest.mark.parametrize("action", [BOX, TANH])
def test_numbers_have_their_moments(action: Action) -> None:
    draws = 100_000
    params = torch.tensor([0.5, -2.0, -1.0, 0.4]).expand(draws, -1)
    rows, _ = drawn(action, params)
    std = np.exp([-1.0, 0.4])
    assert (np.abs(rows.mean(axis=0) - [0.5, -2.0]) < 5 * std / math.sqrt(draws)).all()
    assert (np.abs(rows.std(axis=0) / std - 1) < 5 / math.sqrt(2 * draws)).all()


class LargestDraw(np.random.Generator):
    """Always draws the largest number below one."""

    def random(self, size: Any) -> NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, np.nextafter(1, 0))


def test_a_choice_that_is_not_there_is_never_drawn() -> None:
    params = np.zeros((3, 18), np.float32)
    rows, logp = distribution_of(MIXED).sample(params, LargestDraw(np.random.PCG64(0)))
    np.testing.assert_array_equal(rows[:, :3], [[2, 4, 1]] * 3)
    assert np.isfinite(logp).all()


@EVERY
def test_the_mode(action: Action) -> None:
    known = distribution_of(action)
    params = random_params(known, 8, 9)
    rows = known.mode(params.numpy())
    assert (rows.dtype.name, rows.shape) == (action.dtype, (9, *action.shape))
    columns = rows[:, None] if action.single else rows
    at = 0
    for place, n in enumerate(action.categories):
        likeliest = params[:, at : at + n].argmax(-1).numpy()
        np.testing.assert_array_equal(columns[:, place], likeliest)
        at += n
    if action.numbers:
        means = params[:, at : at + action.numbers].numpy()
        np.testing.assert_array_equal(columns[:, len(action.categories) :], means)


# ---- masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [discrete(4), EVEN, MIXED, SQUASHED])
def test_what_is_masked(action: Action) -> None:
    """Never drawn, log-probability about -1e9, everything finite, and the rest is as without it."""
    known, count = distribution_of(action), 4000
    params = random_params(known, 9, 1).expand(count, -1).clone().requires_grad_()
    mask = torch.ones(count, sum(action.categories), dtype=torch.uint8)
    mask[:, 0] = mask[:, action.categories[0] - 1] = 0  # two of the first choice
    held = known.masked(params, mask)
    rows, logp = drawn(action, held)
    first = rows.reshape(count, -1)[:, 0]
    assert not np.isin(first, [0, action.categories[0] - 1]).any()
    assert logp.min() > -100
    forbidden = torch.from_numpy(rows.copy())
    forbidden.view(count, -1)[:, 0] = 0
    assert known.log_prob(held, forbidden).max() < -0.9e9

    allowed = torch.from_numpy(rows)
    got, entropy = known.log_prob_and_entropy(held, allowed)
    divergence = known.kl(held, known.masked(torch.zeros_like(params), mask))
    (gradient,) = torch.autograd.grad((got + entropy + divergence).sum(), params)
    assert all(x.isfinite().all() for x in (got, entropy, divergence, gradient))
    assert gradient[:, 0].abs().max() == 0  # nothing is learned about it

    inner = params[:, 1 : action.categories[0] - 1]
    expected = torch.log_softmax(inner, -1)
    rest = got - known.log_prob(params, allowed)
    lost = torch.log_softmax(params[:, : action.categories[0]], -1)
    index = allowed.view(count, -1)[:, :1].long()
    gained = expected.gather(-1, index - 1) - lost.gather(-1, index)
    torch.testing.assert_close(rest, gained[:, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("action", [discrete(4), EVEN, MIXED])
def test_where_nothing_is_allowed(action: Action) -> None:
    """As after an episode's end: something there is drawn, and everything is finite."""
    known = distribution_of(action)
    params = random_params(known, 12, 1).expand(500, -1)
    held = known.masked(params, torch.zeros(500, sum(action.categories), dtype=torch.int8))
    rows, logp = drawn(action, held)
    choices = rows.reshape(500, -1)[:, : len(action.categories)]
    assert (choices.max(axis=0) == np.array(action.categories) - 1).all()
    both = known.log_prob_and_entropy(held, torch.from_numpy(rows))
    assert np.isfinite(logp).all() and all(x.isfinite().all() for x in both)


def test_single_costs_what_the_categorical_costs() -> None:
    """The same numbers from the same dice."""
    logits = random_params(distribution_of(discrete(4)), 10, 50).numpy()
    one = distribution_of(discrete(4)).sample(logits, np.random.default_rng(3))
    other = categorical.sample(logits, np.random.default_rng(3))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


def test_what_was_made_for_acting_can_learn() -> None:
    known = distribution_of(SQUASHED)
    params = random_params(known, 11, 4)
    rows = torch.from_numpy(drawn(SQUASHED, params)[0])
    with torch.inference_mode():
        known.log_prob_and_entropy(params, rows)
    params.requires_grad_()
    logp, entropy = known.log_prob_and_entropy(params, rows)
    torch.autograd.backward((logp + entropy).sum())
    assert params.grad is not None and params.grad.isfinite().all()
