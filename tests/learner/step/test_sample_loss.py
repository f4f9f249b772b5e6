"""Checks what the loss asks the network for."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import LossBatch, LossNorm
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.step import sample_loss
from headrace.learner.step.sample_loss import LossParts, inputs_of

LENGTH, COLUMNS = 6, 5
SPACES = Spaces((Leaf("obs", "|u1", (36, 36)),), discrete(3))


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("cached", [1, 16, 10**6])
def test_convolutions_without_gradients_run_on_a_few_columns(
    monkeypatch: pytest.MonkeyPatch, core: str, cached: int
) -> None:
    """And give what they give for all at once: columns know nothing of each other."""
    config = ModelConfig(kind="nature", core=cast(Any, core), core_units=8, separate=False)
    model = build(config, SPACES, seed=1)
    algorithm = AlgorithmConfig(name="appo")
    parts = cast(
        LossParts,
        SimpleNamespace(
            algorithm=algorithm,
            config=LearnerConfig(precision="float32"),
            model=model,
            device=torch.device("cpu"),
        ),
    )
    sizes: list[int] = []

    def network(obs: dict[str, torch.Tensor], *state: Any) -> Any:
        sizes.append(obs["obs"].shape[1])
        return model(obs, *state)

    sample = _sample(model.memory)
    norm, coefs = LossNorm(steps=LENGTH * COLUMNS), cast(Any, None)
    with torch.no_grad():
        wanted = model(sample.obs, sample.memory, sample.begins)
    monkeypatch.setattr(sample_loss, "_CACHED", cached)
    trained = inputs_of(parts, network, network, sample, norm, coefs)
    few = {1: [1] * 5, 16: [2, 2, 1], 10**6: [5]}[cached]
    assert sizes == [COLUMNS, *few]  # what is trained goes through whole
    assert trained.target is not None and trained.output.value.requires_grad
    for found, expected in zip(trained.target, wanted, strict=True):
        torch.testing.assert_close(found, expected)
        assert not found.requires_grad


def _sample(memory: int) -> Sample:
    rng = torch.Generator().manual_seed(3)
    rows = (LENGTH + 1, COLUMNS)
    obs = torch.randint(0, 256, (*rows, 36, 36), generator=rng, dtype=torch.uint8)
    flags = torch.zeros(LENGTH, COLUMNS, dtype=torch.uint8)
    zeros = torch.zeros(LENGTH, COLUMNS)
    return Sample(
        {"obs": obs},
        torch.randn(COLUMNS, memory, generator=rng) if memory else None,
        torch.rand(rows, generator=rng) < 0.2 if memory else None,
        LossBatch(zeros.long(), zeros, zeros, flags),
        1.0,
    )
