"""When policies of a population go on as better ones, and what they take along."""

from types import SimpleNamespace
from typing import cast

import torch

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.config import ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.population.population import Population
from headrace.learner.progress import Progress
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete
from headrace.learner.step.after_step import after_batch
from headrace.learner.train_parts import TrainParts

SPACES = Spaces(
    (Leaf("obs", "<f4", (3,)), Leaf(POLICY, "<i8", (), (8,))), discrete(4), population=8
)
NO_SAMPLE = cast(Sample, SimpleNamespace(loss=SimpleNamespace(live=torch.ones(1))))


def networks() -> tuple[Population, Population]:
    """Returns a population whose policies have played, and its target network."""
    made = [build(ModelConfig(kind="mlp", hidden=(6,)), SPACES, seed=seed) for seed in (1, 2)]
    model, target = made
    assert isinstance(model, Population) and isinstance(target, Population)
    return model, target


def parts_of(model: Population, target: Population, config: LearnerConfig) -> TrainParts:
    progress = Progress(population=8)
    played = tuple((0, float(at), 5) for at in range(8))
    progress.population.add([EpisodeEnds(1, 0, 1, 5, played, players=tuple(range(8)))])
    parts = SimpleNamespace(
        config=config, model=model, target=target, progress=progress, seed=4, ranks=None
    )
    return cast(TrainParts, parts)


def replaced(model: Population, before: torch.Tensor) -> list[int]:
    changed: list[int] = (model.weights != before).any(dim=1).nonzero().flatten().tolist()
    return changed


def test_the_worst_go_on_as_better_ones_every_so_many_steps_of_each() -> None:
    model, target = networks()
    before, before_target = model.weights.detach().clone(), target.weights.detach().clone()
    config = LearnerConfig(replace_every=100, spread={"lr": 1.0})
    parts = parts_of(model, target, config)
    for at in (0, 799):
        parts.progress.trained_steps = at
        after_batch(parts, NO_SAMPLE, None)
        assert replaced(model, before) == []
    parts.progress.trained_steps = 800
    after_batch(parts, NO_SAMPLE, None)
    assert replaced(model, before) == [0, 1] == replaced(target, before_target)
    for policy in (0, 1):
        (better,) = (at for at in (6, 7) if torch.equal(before[at], model.weights[policy]))
        assert torch.equal(target.weights[policy], before_target[better])
    factors = model.get_buffer("lr_factor")
    assert set(factors[:2].tolist()) <= {torch.tensor(1.25).item(), torch.tensor(0.8).item()}
    assert factors[2:].tolist() == [1.0] * 6
    assert model.get_buffer("clip_factor").tolist() == [1.0] * 8
    after = model.weights.detach().clone()
    parts.progress.trained_steps = 1599
    after_batch(parts, NO_SAMPLE, None)
    assert torch.equal(model.weights, after)


def test_the_same_run_replaces_the_same_again_and_none_where_nobody_asks() -> None:
    made = []
    for _ in range(2):
        model, target = networks()
        parts = parts_of(model, target, LearnerConfig(replace_every=1, spread={"clip": 2.0}))
        parts.progress.trained_steps = 50
        after_batch(parts, NO_SAMPLE, None)
        made.append({name: one.clone() for name, one in model.state_dict().items()})
    assert all(torch.equal(one, made[1][name]) for name, one in made[0].items())
    model, target = networks()
    before = model.weights.detach().clone()
    parts = parts_of(model, target, LearnerConfig())
    parts.progress.trained_steps = 10**9
    after_batch(parts, NO_SAMPLE, None)
    assert replaced(model, before) == []
