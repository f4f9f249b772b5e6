"""The losses against published vectors, hand-made numbers, and each other."""

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.learner.algorithms import losses
from headrace.learner.algorithms.advantages import moved, normalised, scaled
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import (
    Coefficients,
    Loss,
    LossBatch,
    LossInputs,
    LossNorm,
    Targets,
)
from headrace.learner.algorithms.losses import LOSSES, drifted_steps
from headrace.learner.algorithms.schedule import value_at
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models import categorical
from headrace.learner.models.distribution import distribution_of
from headrace.learner.models.model import Output
from headrace.learner.models.normalise import Moments, moments, value_fit
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Action, Part, discrete
from tests.learner.together import together

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "reference" / "values.json").read_text()
)
LN2 = math.log(2)


def tensor(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def entropy_of(logits: Tensor) -> Tensor:
    return categorical.log_prob_and_entropy(logits, logits.argmax(-1))[1]


# Published vectors


def test_clipped_surrogate_vectors() -> None:
    known = REFERENCE["ppo_clip_rlax"]
    actions = torch.tensor(known["actions"])
    logp = categorical.log_prob(tensor(known["logits"]), actions)
    old = categorical.log_prob(tensor(known["old_logits"]), actions)
    ratio = losses.surrogate_ratio(logp, target_logp=old, behaviour_logp=old)
    advantages = tensor(known["advantages"])
    assert ratio.tolist() == pytest.approx(known["ratios"], abs=1e-6)
    for sign, expected in ((1, known["loss_adv_pos"]), (-1, known["loss_adv_neg"])):
        loss = losses.clipped_surrogate(ratio, sign * advantages, known["epsilon"]).mean()
        # The tolerance is that of the publication.
        assert loss.item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("case", [1, 2])
def test_policy_gradient_and_entropy_vectors(case: int) -> None:
    cases = REFERENCE["pg_and_entropy_rlax"]
    known, shift, sign = cases[f"case{case}"], case - 1, 3 - 2 * case
    logits = tensor(cases["case1"]["logits"]) + shift
    advantages = sign * tensor(cases["case1"]["advantages"])
    weights = tensor(known["weights"])
    logp = categorical.log_prob(logits, torch.tensor(known["actions"]))
    loss = (losses.policy_gradient(logp, advantages) * weights).mean()
    assert loss.item() == pytest.approx(known["pg_loss"], abs=1e-6)
    entropy_loss = -(entropy_of(logits) * weights).mean()
    assert entropy_loss.item() == pytest.approx(known["entropy_loss"], abs=1e-5)


@pytest.mark.slow
def test_entropy_vectors_and_their_gradients() -> None:
    known = REFERENCE["trfl_entropy"]
    logits = tensor(known["logits"]).requires_grad_()
    entropy = entropy_of(logits)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    torch.testing.assert_close(entropy.detach(), tensor(known["entropy"]), atol=1e-7, rtol=0)
    torch.testing.assert_close(gradient, tensor(known["grad"]), atol=1e-6, rtol=0)


def test_policy_gradient_vectors_and_their_gradients() -> None:
    known = REFERENCE["trfl_pg"]
    logits = tensor(known["logits"]).requires_grad_()
    logp = categorical.log_prob(logits, torch.tensor(known["actions"]))
    loss = losses.policy_gradient(logp, tensor(known["action_values"]))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(loss.detach(), tensor(known["loss"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(gradient, tensor(known["grad"]), atol=1e-3, rtol=0)


def test_baseline_and_entropy_of_torchbeast() -> None:
    known = REFERENCE["torchbeast_losses"]
    errors = tensor(known["baseline"]["advantages"])
    loss = losses.value_error(torch.zeros_like(errors), errors).sum()
    assert loss.item() == pytest.approx(known["baseline"]["loss"], abs=1e-4)
    logits = tensor(known["entropy"]["logits"]).requires_grad_()
    entropy_loss = -entropy_of(logits)
    (gradient,) = torch.autograd.grad(entropy_loss, logits)
    assert entropy_loss.item() == pytest.approx(known["entropy"]["loss"], abs=1e-6)
    torch.testing.assert_close(gradient, tensor(known["entropy"]["grad"]), atol=1e-6, rtol=0)


# Whole losses


def make_batch(seed: int) -> tuple[Output, Output, LossBatch]:
    """(policy's output, target's output, batch); ratios pass the clips, all flags occur."""
    steps, columns = 9, 6
    rng = torch.Generator().manual_seed(seed)
    params, target_params = torch.randn(2, steps + 1, columns, 3, generator=rng)
    value, target_value = torch.randn(2, steps + 1, columns, generator=rng)
    flags = torch.zeros(steps, columns, dtype=torch.uint8)
    flags[2, 0], flags[3, 0] = TERMINATED, DEAD
    flags[4, 1], flags[5, 1] = TRUNCATED, DEAD
    flags[0, 2] = DEAD
    flags[steps - 1, 3] = TRUNCATED
    batch = LossBatch(
        action=torch.randint(3, (steps, columns), generator=rng),
        logp=-0.1 - 2 * torch.rand(steps, columns, generator=rng),
        reward=torch.randn(steps, columns, generator=rng),
        flags=flags,
    )
    return (
        Output(params.requires_grad_(), value.requires_grad_()),
        Output(target_params, target_value),
        batch,
    )


def live_steps(batch: LossBatch) -> int:
    return int(((batch.flags & DEAD) == 0).sum())


def gradients(loss: Loss, output: Output) -> tuple[Tensor, Tensor]:
    params, value = torch.autograd.grad(loss.total, list(output))
    return params, value


def config(name: Any, **changes: Any) -> AlgorithmConfig:
    return AlgorithmConfig(name=name, **changes)


def run(
    settings: AlgorithmConfig,
    output: Output,
    target: Output,
    batch: LossBatch,
    norm: LossNorm,
    std: float | Tensor = 1.0,
    advantage_square: float | None = None,
) -> Loss:
    """One loss as the train loop calls it; ppo's targets are made from the target's values."""
    given = LossInputs(
        config=settings,
        coefs=Coefficients(
            value_at(settings.clip, 0),
            value_at(settings.entropy_coef, 0),
            settings.kl_coef,
            std,
            advantage_square,
        ),
        distribution=distribution_of(discrete(output.params.shape[-1])),
        output=output,
        batch=batch,
        target=target if settings.name == "appo" else None,
        norm=norm,
    )
    if settings.name == "ppo":
        targets = gae_targets(replace(given, output=target))
        steps = Output(output.params[:-1], output.value[:-1])
        given = replace(given, output=steps, batch=batch._replace(targets=targets))
    return LOSSES[settings.name](given)


def single_step(logit: float, *, reward: float, flags: int) -> tuple[Output, LossBatch]:
    """One step of one column with two actions; values 0.5 and 2, behaviour indifferent."""
    output = Output(
        torch.tensor([[[logit, 0.0]], [[0.0, 0.0]]], requires_grad=True),
        torch.tensor([[0.5], [2.0]], requires_grad=True),
    )
    batch = LossBatch(
        torch.tensor([[0]]),
        torch.tensor([[-LN2]]),
        torch.tensor([[reward]]),
        torch.tensor([[flags]], dtype=torch.uint8),
    )
    return output, batch


@pytest.mark.parametrize(
    ("flags", "vs"), [(0, 1 + 0.5 * 2), (TRUNCATED, 1 + 0.5 * 2), (TERMINATED, 1.0)]
)
def test_impala_by_hand(flags: int, vs: float) -> None:
    output, batch = single_step(0.0, reward=1.0, flags=flags)
    settings = config("impala", gamma=0.5, value_coef=0.25, entropy_coef=0.1)
    loss = run(settings, output, output, batch, LossNorm(steps=1))
    advantage = vs - 0.5
    policy, value = LN2 * advantage, 0.5 * advantage**2
    assert loss.stats["policy_loss"].item() == pytest.approx(policy)
    assert loss.stats["value_loss"].item() == pytest.approx(value)
    assert loss.stats["entropy"].item() == pytest.approx(LN2)
    assert loss.stats["rho_mean"].item() == pytest.approx(1)
    assert loss.stats["kl"].item() == pytest.approx(0, abs=1e-6)
    assert loss.total.item() == pytest.approx(policy + 0.25 * value - 0.1 * LN2)
    by_params, by_value = gradients(loss, output)
    # Uniform entropy has no slope; the log-prob of a fair choice of two has slope 1/2.
    assert by_params.flatten().tolist() == pytest.approx([-advantage / 2, advantage / 2, 0, 0])
    assert by_value.flatten().tolist() == pytest.approx([-0.25 * advantage, 0])


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
def test_what_follows_an_end_belongs_to_another_episode(end: int) -> None:
    """Even without a reset step between them: step 1's reward must not reach step 0."""
    output, _, batch = make_batch(6)
    flags = torch.zeros_like(batch.flags)
    flags[0] = end
    by_params = []
    for reward in (1.0, 100.0):
        batch.reward[1] = reward
        loss = run(
            config("impala"), output, output, batch._replace(flags=flags), LossNorm(steps=54)
        )
        by_params.append(gradients(loss, output)[0])
    assert torch.equal(by_params[0][0], by_params[1][0])
    assert not torch.equal(by_params[0][1], by_params[1][1])


def test_appo_by_hand() -> None:
    """The policy has moved from 1/2 to 3/4: the ratio 3/2 lies beyond the clip."""
    output, batch = single_step(math.log(3), reward=1.0, flags=TERMINATED)
    target = Output(torch.zeros(2, 1, 2), torch.tensor([[0.25], [9.0]]))
    settings = config("appo", value_coef=0.25, entropy_coef=0.1, kl_coef=2.0, clip=0.2)
    loss = run(settings, output, target, batch, LossNorm(steps=1))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    kl = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    # The target network's value 0.25 makes the advantage, the trained one's 0.5 is pulled to 1.
    policy, value = -1.2 * 0.75, 0.5 * 0.5**2
    assert loss.stats["policy_loss"].item() == pytest.approx(policy)
    assert loss.stats["value_loss"].item() == pytest.approx(value)
    assert loss.stats["target_kl"].item() == pytest.approx(kl)
    assert loss.stats["clip_fraction"].item() == 1
    assert loss.stats["rho_mean"].item() == pytest.approx(1.5)
    assert loss.total.item() == pytest.approx(policy + 0.25 * value - 0.1 * entropy + 2 * kl)


def test_a_dead_step_is_in_no_statistic() -> None:
    """The same step as above, beyond the clip, but it only resets."""
    output, batch = single_step(math.log(3), reward=1.0, flags=DEAD)
    target = Output(torch.zeros(2, 1, 2), torch.tensor([[0.25], [9.0]]))
    loss = run(config("appo", kl_coef=2.0), output, target, batch, LossNorm(steps=1))
    assert {name: value.item() for name, value in loss.stats.items()} == dict.fromkeys(
        loss.stats, 0
    )
    assert loss.total.item() == 0


def test_surrogate_ratio_bounds_the_weight_of_the_behaviour() -> None:
    """policy/behaviour x min(behaviour/target, 2), spelt out in probabilities."""
    policy, target, behaviour = (tensor(p) for p in ([0.6, 0.6, 0.6], [0.5, 0.1, 0.9], [0.5] * 3))
    ratio = losses.surrogate_ratio(
        policy.log(), target_logp=target.log(), behaviour_logp=behaviour.log()
    )
    torch.testing.assert_close(ratio, policy / behaviour * (behaviour / target).clamp(0, 2))
    torch.testing.assert_close(ratio, tensor([1.2, 2.4, 0.6 / 0.9]))


def test_an_impossible_ratio_has_a_finite_gradient() -> None:
    logp = torch.tensor([-0.1, -0.1], requires_grad=True)
    never = torch.full((2,), -1000.0)
    ratio = losses.surrogate_ratio(logp, target_logp=never, behaviour_logp=never)
    loss = losses.clipped_surrogate(ratio, torch.tensor([1.0, -1.0]), 0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("log_ratio", [-30.0, -0.5, 0.5, 19.9, 20.1, 30.0, 80.0, 1e9])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_exploded_ratio_is_led_back_if_the_action_was_bad(
    log_ratio: float, advantage: float
) -> None:
    """Against the derivative of -min(r A, clip(r) A) in float64, r no larger than e^20."""
    logp = torch.tensor([log_ratio], requires_grad=True)
    nothing = torch.zeros(1)
    ratio = losses.surrogate_ratio(logp, target_logp=nothing, behaviour_logp=nothing)
    loss = losses.clipped_surrogate(ratio, torch.tensor([advantage]), 0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    r = math.exp(min(log_ratio, 20.0))
    free = r < 1.2 if advantage > 0 else r > 0.8
    assert gradient.item() == pytest.approx(-r * advantage if free else 0.0, rel=1e-5)
    assert ratio.item() == pytest.approx(r, rel=1e-5)


@pytest.mark.parametrize("name", ["appo", "ppo"])
def test_a_step_whose_ratio_exploded_has_finite_numbers_and_a_way_back(name: Any) -> None:
    params = torch.tensor([[[200.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    output = Output(params, torch.zeros(2, 1, requires_grad=True))
    target = Output(torch.tensor([[[-200.0, 0.0]], [[0.0, 0.0]]]), torch.zeros(2, 1))
    batch = LossBatch(
        torch.tensor([[0]]),
        torch.tensor([[-200.0]]),
        torch.tensor([[-1.0]]),
        torch.full((1, 1), TERMINATED, dtype=torch.uint8),
    )
    if name == "ppo":
        minus = torch.full((1, 1), -1.0)
        batch = batch._replace(targets=Targets(minus, minus, torch.zeros(1, 1)))
        output = Output(params[:-1], torch.zeros(1, 1, requires_grad=True))
    given = LossInputs(
        config=config(name, entropy_coef=0.0),
        coefs=Coefficients(clip=0.2, entropy_coef=0.0, kl_coef=0.0),
        distribution=distribution_of(discrete(2)),
        output=output,
        batch=batch,
        target=target if name == "appo" else None,
        norm=LossNorm(steps=1),
    )
    loss = LOSSES[name](given)
    assert all(stat.isfinite() for stat in loss.stats.values()), loss.stats
    # At a softmax that is saturated the gradient of its own is zero: that of the ratio is not.
    assert loss.stats["policy_loss"].item() > 1e8


@pytest.mark.parametrize("normalised", [False, True])
def test_on_policy_all_have_the_gradient_of_impala(normalised: bool) -> None:
    output, _, batch = make_batch(1)
    logp = categorical.log_prob(output.params[:-1], batch.action).detach()
    batch = batch._replace(logp=logp)
    norm = LossNorm(steps=live_steps(batch))
    target = Output(output.params.detach(), output.value.detach())
    found = []
    for name in LOSSES:
        settings = config(name, kl_coef=0.3, normalise_advantages=normalised, trace=0.9)
        loss = run(settings, output, target, batch, norm)
        assert loss.stats["rho_mean"].item() == pytest.approx(1)
        found.append(gradients(loss, output))
        if name != "impala":
            assert loss.stats["clip_fraction"] == 0
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_dead_steps_change_nothing(name: str, normalised: bool) -> None:
    settings = config(name, kl_coef=0.1, normalise_advantages=normalised)
    output, target, batch = make_batch(2)
    norm = LossNorm(steps=live_steps(batch))
    loss = run(settings, output, target, batch, norm, std=torch.tensor(2.0))
    by_params, by_value = gradients(loss, output)

    dead = (batch.flags & DEAD) != 0
    everywhere = torch.cat([dead, torch.zeros_like(dead[:1])]).unsqueeze(-1)
    assert dead.any() and not by_params[:-1][dead].any() and not by_value[:-1][dead].any()
    other, other_target, noise = make_batch(3)
    changed_output = Output(
        torch.where(everywhere, other.params, output.params).detach().requires_grad_(), output.value
    )
    changed_target = Output(
        torch.where(everywhere, other_target.params, target.params), target.value
    )
    changed_batch = LossBatch(
        action=torch.where(dead, noise.action, batch.action),
        logp=torch.where(dead, noise.logp, batch.logp),
        reward=torch.where(dead, noise.reward, batch.reward),
        flags=batch.flags,
    )
    changed = run(
        settings, changed_output, changed_target, changed_batch, norm, std=torch.tensor(2.0)
    )
    assert changed.total.item() == loss.total.item()
    assert changed.stats == loss.stats
    found, without = (moments_of(of.vs, batch) for of in (changed, loss))
    assert all(map(torch.equal, found, without))
    torch.testing.assert_close(gradients(changed, changed_output), (by_params, by_value))


def moments_of(vs: Tensor, batch: LossBatch) -> Moments:
    return moments(vs.unsqueeze(-1), batch.live, lambda sums: sums)


def columns(
    output: Output, target: Output, batch: LossBatch, where: slice
) -> tuple[Output, Output, LossBatch]:
    """What one rank sees of the whole."""
    return (
        Output(*(part[:, where] for part in output)),
        Output(*(part[:, where] for part in target)),
        LossBatch(
            batch.action[:, where],
            batch.logp[:, where],
            batch.reward[:, where],
            batch.flags[:, where],
        ),
    )


@pytest.mark.parametrize("normalised", [False, True, "running"])
@pytest.mark.parametrize("name", LOSSES)
def test_two_ranks_make_the_gradient_of_one(name: str, normalised: bool | str) -> None:
    """Uneven ranks: 2 and 4 columns. DDP adds the gradients and divides by the ranks."""
    settings = config(name, kl_coef=0.1, normalise_advantages=normalised)
    output, target, batch = make_batch(4)
    steps = live_steps(batch)
    whole = run(settings, output, target, batch, LossNorm(steps=steps))

    ranks = [columns(output, target, batch, where) for where in (slice(2), slice(2, None))]
    sums: list[Tensor] = []

    def on(rank: tuple[Output, Output, LossBatch], total: Callable[[Tensor], Tensor]) -> Loss:
        def counted(value: Tensor) -> Tensor:
            sums.append(value)
            return total(value)

        return run(settings, *rank, LossNorm(steps=steps, world=2, reduce=counted))

    parts = together([functools.partial(on, rank) for rank in ranks])
    assert bool(sums) == bool(normalised)
    average = whole._replace(total=(parts[0].total + parts[1].total) / 2)
    torch.testing.assert_close(
        gradients(average, output), gradients(whole, output), atol=1e-6, rtol=0
    )
    first, second = (shown(part) for part in parts)
    for stat, value in shown(whole).items():
        assert (first[stat] + second[stat]).item() / 2 == pytest.approx(value.item(), abs=1e-6)


def shown(loss: Loss) -> dict[str, Tensor]:
    return loss.stats | value_fit(loss.value, loss.vs, loss.share)


def test_normalised_advantages() -> None:
    advantages = torch.tensor([[1.0, 2.0], [3.0, 777.0]])
    live = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    unit = normalised(advantages, live, LossNorm(steps=3))
    third = math.sqrt(1.5)
    assert unit.flatten().tolist() == pytest.approx([-third, 0, third, 0])
    level = normalised(torch.full((4, 4), 1e4), torch.ones(4, 4), LossNorm(steps=16))
    assert level.abs().max() < 1e-3


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_advantages_by_their_running_mean_square(name: str) -> None:
    """The first batch's own, the known one then; no mean is taken away."""
    output, target, batch = make_batch(4)
    norm = LossNorm(steps=live_steps(batch))
    plain, running = config(name), config(name, normalise_advantages="running")
    without = run(plain, output, target, batch, norm)
    first = run(running, output, target, batch, norm)
    square = float(first.stats["advantage_square"])
    assert "advantage_square" not in without.stats and square > 0
    for known, root in ((None, square**0.5), (4.0, 2.0)):
        loss = run(running, output, target, batch, norm, advantage_square=known)
        policy = without.stats["policy_loss"].item() / root
        assert loss.stats["policy_loss"].item() == pytest.approx(policy, rel=1e-5)
        assert float(loss.stats["advantage_square"]) == square


@pytest.mark.parametrize("mean", [-3.0, 3.0])
def test_where_actions_are_numbers_a_mean_below_0_is_taken_away(mean: float) -> None:
    output, _, batch = make_batch(4)
    given = LossInputs(
        config=config("impala", normalise_advantages="running"),
        coefs=Coefficients(0.2, 0.0, 0.0, advantage_square=4.0),
        distribution=distribution_of(discrete(3)),
        output=output,
        batch=batch,
        norm=LossNorm(steps=live_steps(batch)),
    )
    numbers = distribution_of(Action((Part((), "float32", (1,), low=(-9.0,), high=(9.0,)),)))
    advantages = torch.randn(batch.reward.shape) + mean
    choices, told = scaled(given, advantages)
    density, same = scaled(replace(given, distribution=numbers), advantages)
    torch.testing.assert_close(choices, advantages / 2.0)
    found = (advantages * given.live).sum() / given.live.sum()
    torch.testing.assert_close(density, (advantages - found.clamp(max=0.0)) / 2.0)
    assert same == told and abs(float(found) - mean) < 2.0


def test_the_running_mean_square_is_a_mean_at_first_and_forgets_then() -> None:
    squares = np.random.default_rng(0).uniform(0.0, 9.0, 300).tolist()
    found: float | None = None
    for steps, square in enumerate(squares, start=1):
        found = moved(found, square, steps)
        if steps <= 100:
            assert found == pytest.approx(float(np.mean(squares[:steps])))
    ages = 0.99 ** np.arange(200)[::-1]
    kept = 0.01 * float(np.dot(ages, squares[100:])) + 0.99**200 * float(np.mean(squares[:100]))
    assert found == pytest.approx(kept)
    assert moved(None, 4.0, 100_000) == 4.0  # set in the middle of a run


def test_a_missing_target_network_is_our_bug() -> None:
    output, target, batch = make_batch(5)
    given = LossInputs(
        config=config("appo"),
        coefs=Coefficients(0.2, 0.0, 0.0),
        distribution=distribution_of(discrete(3)),
        output=output,
        batch=batch,
        norm=LossNorm(steps=1),
    )
    with pytest.raises(AssertionError, match="target network"):
        losses.appo(given)
    with pytest.raises(AssertionError, match="target network"):
        losses.impala(replace(given, target=target))
    with pytest.raises(AssertionError, match="targets"):
        losses.ppo(given)


# ppo


def test_ppo_by_hand() -> None:
    """The policy has moved from 1/2 to 3/4, the value from 0.25 to 0.5; both beyond their clips."""
    output, batch = single_step(math.log(3), reward=1.0, flags=TERMINATED)
    target = Output(torch.zeros(2, 1, 2), torch.tensor([[0.25], [9.0]]))
    settings = config("ppo", value_coef=0.25, entropy_coef=0.1, clip=0.2, value_clip=0.1)
    loss = run(settings, output, target, batch, LossNorm(steps=1))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    # Advantage 1 - 0.25. Clipped, the value is 0.35 and errs more than 0.5 does: that counts.
    policy, value = -1.2 * 0.75, 0.5 * 0.65**2
    assert loss.stats["policy_loss"].item() == pytest.approx(policy)
    assert loss.stats["value_loss"].item() == pytest.approx(value)
    assert loss.stats["clip_fraction"].item() == 1
    assert loss.stats["kl"].item() == pytest.approx(1.5 - 1 - math.log(1.5))
    assert loss.total.item() == pytest.approx(policy + 0.25 * value - 0.1 * entropy)
    by_params, by_value = gradients(loss, output)
    assert not by_value.any()
    # Only the entropy pulls at a policy beyond the clip.
    assert by_params[0, 0, 0].item() > 0


# Normalised returns


@pytest.mark.parametrize("name", LOSSES)
def test_returns_are_measured_in_their_deviation(name: str) -> None:
    """All rewards and values ten times as large, and so the deviation: the same losses."""
    output, target, batch = make_batch(8)
    norm = LossNorm(steps=live_steps(batch))
    small = run(config(name), output, target, batch, norm, std=torch.tensor(1.0))
    large = run(
        config(name),
        Output(output.params, output.value * 10),
        Output(target.params, target.value * 10),
        batch._replace(reward=batch.reward * 10),
        norm,
        std=torch.tensor(10.0),
    )
    assert large.total.item() == pytest.approx(small.total.item(), rel=1e-5)
    count, mean, squares = map(float, moments_of(small.vs, batch))
    found = list(map(float, moments_of(large.vs, batch)))
    assert found == pytest.approx([count, 10 * mean, 100 * squares], rel=1e-4)
    assert count == live_steps(batch)


@pytest.mark.parametrize("name", ["impala", "appo"])
@pytest.mark.parametrize(
    ("reward", "limit", "drifted"),
    [
        (1.0, 0.2, 1.0),
        (1.0, 0.3, 0.0),  # it has not moved so far
        (1.0, 0.0, 0.0),  # off
        (0.0, 0.2, 0.0),  # the action was bad: its advantage leads back
    ],
)
def test_a_step_that_has_drifted_trains_the_policy_no_further(
    name: str, reward: float, limit: float, drifted: float
) -> None:
    """The policy has moved from 1/2 to 3/4, the value is 1/2."""
    output, batch = single_step(math.log(3), reward=reward, flags=TERMINATED)
    target = Output(*(part.detach() for part in output))
    settings = config(name, entropy_coef=0.0, drift_limit=limit)
    loss = run(settings, output, target, batch, LossNorm(steps=1))
    by_params, by_value = gradients(loss, output)
    assert loss.stats["drift_fraction"].item() == drifted
    assert bool(by_params.any()) == (drifted == 0)
    assert (loss.stats["policy_loss"].item() == 0) == (drifted == 1)
    assert by_value.flatten().tolist() == pytest.approx([0.5 * (0.5 - reward), 0])


def test_a_bad_action_that_has_become_rare_drifts_too() -> None:
    """From 1/2 to 1/4: its ratio is 1/2."""
    output, batch = single_step(-math.log(3), reward=0.0, flags=TERMINATED)
    loss = run(config("impala", drift_limit=0.2), output, output, batch, LossNorm(steps=1))
    assert loss.stats["drift_fraction"].item() == 1
    assert loss.stats["policy_loss"].item() == 0


def test_a_drift_of_a_rare_action_is_small_whatever_its_ratio() -> None:
    """From 1/2000 to 1/3: by its ratio, 667, it would have left any bound."""
    output, batch = single_step(-LN2, reward=1.0, flags=TERMINATED)
    batch = batch._replace(logp=torch.tensor([[-math.log(2000)]]))
    loss = run(config("impala", drift_limit=0.34), output, output, batch, LossNorm(steps=1))
    assert loss.stats["drift_fraction"].item() == 0


def test_dead_steps_do_not_drift() -> None:
    output, _, batch = make_batch(11)
    every = LossNorm(steps=live_steps(batch))
    settings = config("impala", drift_limit=0.01, normalise_advantages=True)
    share = run(settings, output, output, batch, every).stats["drift_fraction"].item()
    assert 0 < share < 1
    assert share * live_steps(batch) == pytest.approx(round(share * live_steps(batch)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "limit", "drifted"),
    [
        (2.0, 1.0, 0.49, True),  # the density has doubled
        (2.0, 1.0, 0.51, False),
        (0.5, -1.0, 0.49, True),
        (2.0, -1.0, 0.49, False),  # back to where it was played
        (1e9, 1.0, 1.0, False),  # nothing is beyond 1
        (1e-9, -1.0, 0.99, True),
    ],
)
def test_a_density_drifts_by_the_share_that_it_has_moved(
    ratio: float, advantage: float, limit: float, drifted: bool
) -> None:
    numbers = distribution_of(Action((Part((), "float32", (1,), low=(-9.0,), high=(9.0,)),)))
    output, batch = single_step(0.0, reward=0.0, flags=TERMINATED)
    given = LossInputs(
        config=config("impala", drift_limit=limit),
        coefs=Coefficients(clip=0.2, entropy_coef=0.0, kl_coef=0.0),
        distribution=numbers,
        output=output,
        batch=batch._replace(logp=torch.tensor([[3.0]])),
        norm=LossNorm(steps=1),
    )
    logp = torch.tensor([[3.0 + math.log(ratio)]])
    found = drifted_steps(given, logp, torch.tensor([[advantage]]))
    assert found.tolist() == [[drifted]]


def test_a_batch_without_a_live_step_is_no_fault() -> None:
    output, target, batch = make_batch(9)
    batch = batch._replace(flags=torch.full_like(batch.flags, DEAD))
    for name in LOSSES:
        settings = config(name, normalise_advantages=True, kl_coef=0.1)
        loss = run(settings, output, target, batch, LossNorm(steps=1))
        assert loss.total.item() == 0
        assert all(not part.any() for part in gradients(loss, output))


def test_ppo_does_not_correct() -> None:
    """The clips of rho are V-trace's."""
    output, target, batch = make_batch(10)
    norm = LossNorm(steps=live_steps(batch))
    plain = run(config("ppo"), output, target, batch, norm)
    clipped = config("ppo", rho_clip=0.3, c_clip=0.2, pg_rho_clip=0.1)
    assert run(clipped, output, target, batch, norm).total.item() == plain.total.item()


def test_the_kl_weight_adapts() -> None:
    assert losses.adapted_kl_coef(1.0, 0.021, 0.01) == 1.5
    assert losses.adapted_kl_coef(1.0, 0.0049, 0.01) == 0.5
    assert losses.adapted_kl_coef(1.0, 0.01, 0.01) == 1.0
    # It can always come back.
    assert (
        0 < losses.adapted_kl_coef(1e-4, 0.0, 0.01) < losses.adapted_kl_coef(1e4, 1e9, 0.01) < 1e5
    )
