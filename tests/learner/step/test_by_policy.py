"""The loss of a population: each policy's gradient is that of the policy alone on its own steps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import Coefficients, LossBatch, LossNorm
from headrace.learner.algorithms.optimiser_step import make_optimiser
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.models.population.population import FACTORS, Population
from headrace.learner.models.population.row_adam import rows_of
from headrace.learner.spaces import DEAD, POLICY, TERMINATED, Leaf, Spaces, discrete
from headrace.learner.step.sample_loss import loss_of, with_targets_of
from headrace.learner.train_parts import TrainParts

OBS = Leaf("obs", "<f4", (3,))
ALONE = Spaces((OBS,), discrete(4))
MANY = Spaces((OBS, Leaf(POLICY, "<i8", (), (4,))), discrete(4), population=4)
CONFIG = ModelConfig(kind="mlp", hidden=(6,))
LENGTH = 7
ALGORITHMS = [
    AlgorithmConfig(name="impala", entropy_coef=0.3),
    AlgorithmConfig(name="appo", entropy_coef=0.3, clip=0.1, kl_coef=0.5),
    AlgorithmConfig(name="ppo", entropy_coef=0.3, clip=0.1, normalise_advantages=True),
    AlgorithmConfig(name="ppo", entropy_coef=0.3, clip=0.1, normalise_advantages=False),
]


def parts_of(algorithm: AlgorithmConfig, model: Model, target: Model | None) -> TrainParts:
    coefs = Coefficients(
        clip=cast(float, algorithm.clip),
        entropy_coef=cast(float, algorithm.entropy_coef),
        kl_coef=algorithm.kl_coef,
    )
    ranks = SimpleNamespace(total=lambda sums: sums, world=1)
    parts = SimpleNamespace(
        algorithm=algorithm,
        config=LearnerConfig(),
        model=model,
        target=target if algorithm.name == "appo" else None,
        device=torch.device("cpu"),
        ranks=ranks,
        coefficients=lambda: coefs,
    )
    return cast(TrainParts, parts)


def gradient(parts: TrainParts, sample: Sample) -> None:
    steps = sample.loss.live.sum().clamp(min=1)
    prepared = with_targets_of(parts, sample, LossNorm(steps=steps))
    total: Any = loss_of(parts, parts.model, prepared).total
    total.backward()


def sample() -> tuple[Sample, Tensor]:
    """Returns steps of four policies, and who plays each: policy 3 only after the last step."""
    rng = torch.Generator().manual_seed(5)
    shape = (LENGTH, 6)
    policy = torch.tensor([0, 0, 1, 2, 2, 2]).repeat(LENGTH + 1, 1)
    flags = torch.zeros(shape, dtype=torch.uint8)
    flags[2, 2] = TERMINATED  # in column 2 policy 0 takes over in the middle
    flags[3, 2] = DEAD
    policy[3:, 2] = 0
    flags[-1, 0] = TERMINATED
    policy[-1, 0] = 3
    loss = LossBatch(
        torch.randint(0, 4, shape, generator=rng),
        torch.randn(shape, generator=rng) * 0.3 - 1.4,
        torch.randn(shape, generator=rng),
        flags,
    )
    obs = torch.randn((LENGTH + 1, 6, 3), generator=rng)
    return Sample({"obs": obs, POLICY: policy}, None, None, loss, 6.0), policy


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.name)
def test_each_policy_learns_as_it_would_alone(algorithm: AlgorithmConfig) -> None:
    many, target = (build(CONFIG, MANY, seed=seed) for seed in (1, 2))
    assert isinstance(many, Population) and isinstance(target, Population)
    many.spread({"entropy_coef": 3.0, "clip": 2.0}, seed=4)
    whole, policy = sample()
    gradient(parts_of(algorithm, many, target), whole)
    rows, gradients = rows_of(many.weights)
    assert rows.tolist() == [0, 1, 2] if algorithm.name == "ppo" else [0, 1, 2, 3]
    for row, made in zip(rows.tolist(), gradients, strict=True):
        if row == 3:
            assert not made.any()  # a value that nobody's targets trained
            continue
        own = whole.loss.flags.clone()
        own[policy[:-1] != row] = DEAD
        part = whole._replace(obs={"obs": whole.obs["obs"]}, loss=whole.loss._replace(flags=own))
        factors = {key: float(many.get_buffer(name)[row]) for key, name in FACTORS.items()}
        settings = AlgorithmConfig(
            name=algorithm.name,
            entropy_coef=0.3 * factors["entropy_coef"],
            clip=cast(float, algorithm.clip) * factors["clip"],
            kl_coef=algorithm.kl_coef,
            normalise_advantages=algorithm.normalise_advantages,
        )
        alone = many.alone(row)
        gradient(parts_of(settings, alone, target.alone(row)), part)
        expected = nn.utils.parameters_to_vector(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in alone.parameters()]
        )
        torch.testing.assert_close(made, expected, rtol=2e-4, atol=2e-6)


def test_factors_stay_between_their_bounds_and_are_the_same_again() -> None:
    many = build(CONFIG, MANY, seed=1)
    assert isinstance(many, Population)
    many.spread({"lr": 4.0}, seed=9)
    drawn = many.get_buffer("lr_factor").clone()
    assert len(set(drawn.tolist())) == 4 and bool(((drawn >= 0.25) & (drawn <= 4)).all())
    assert bool((many.get_buffer("clip_factor") == 1).all())
    many.spread({"lr": 4.0}, seed=9)
    assert torch.equal(many.get_buffer("lr_factor"), drawn)
    assert type(make_optimiser(LearnerConfig(), many, lr=1.0)).__name__ == "RowAdam"
