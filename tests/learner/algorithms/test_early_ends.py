"""An unroll that ended early gives what the same steps give as a whole, shorter unroll."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.actors.rollout import Rollout
from headrace.learner.algorithms.batch_uses import Sample, with_targets
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossInputs, LossNorm
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import sample_of
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.models.normalise import moments
from headrace.learner.spaces import (
    DEAD,
    TERMINATED,
    TRUNCATED,
    Action,
    Leaf,
    Part,
    Spaces,
    discrete,
)
from tests.learner.unrolls import message, words

LENGTH, ENVS = 9, 3
NUMBERS = Action((Part((), "<f4", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),))
LEAVES = (Leaf("obs", "<f4", (3,), stack=3), Leaf("far", "<f4", (2,)))
MODELS = {
    "mlp": ModelConfig(kind="mlp", hidden=(8,)),
    "lstm": ModelConfig(kind="mlp", hidden=(8,), core="lstm", core_units=4, previous=True),
    "gru": ModelConfig(kind="mlp", hidden=(8,), core="gru", core_units=4, separate=False),
}
CONFIG: dict[str, Any] = {"trace": 0.9, "gamma": 0.97, "value_clip": 0.2}


@dataclass
class Played:
    """Steps of ENVS environments, a part each, and how many of them each part has played."""

    spaces: Spaces
    model: ModelConfig
    counts: list[int]
    seed: int

    def batch(self, length: int, columns: slice = slice(None)) -> dict[str, Tensor]:
        """The unroll of these columns as a batch of one, in unrolls of that length."""
        rng = np.random.default_rng(self.seed)
        memory, previous = self.model.memory, self.model.previous
        history = {
            "obs.obs": rng.normal(size=(2, ENVS, 3)),
            "memory": rng.normal(size=(1, ENVS, memory)),
            "before.action": np.zeros((1, ENVS, *self.spaces.action.shape)),
            "before.reward": rng.normal(size=(1, ENVS)),
        }
        steps = [self._step(rng) for _ in range(LENGTH + 1)]
        flags = self._flags()
        envs = len(range(ENVS)[columns])
        shape: dict[str, Any] = {
            "length": length,
            "envs": envs,
            "memory": memory,
            "previous": previous,
        }
        rollout = Rollout(self.spaces, parts=envs, **shape)
        absent = {"memory": memory, "before.action": previous, "before.reward": previous}
        rollout.open({n: h[:, columns] for n, h in history.items() if absent.get(n, True)})
        for part, column in zip(rollout.parts, range(ENVS)[columns], strict=True):
            count, own = self.counts[column], slice(column, column + 1)
            for t, (rows, action, logp, reward) in enumerate(steps[:count]):
                part.acted({n: r[own] for n, r in rows.items()}, action[own], logp[own], 0)
                part.stepped(reward[own], flags[t, own])
            part.close({name: row[own] for name, row in steps[count][0].items()})
        rollout.count()
        done = rollout.finish()
        made = Batch(self.spaces, unrolls=1, pinned=False, **shape)
        said = message(0, steps=done.steps, digest=done.digest, ended=done.ended)
        assert words(made.place(said, done.buffers)) == ""
        assert made.steps == sum(
            (flags[: self.counts[c], c] != DEAD).sum() for c in range(ENVS)[columns]
        )
        return made.tensors

    def _step(self, rng: np.random.Generator) -> tuple[Any, ...]:
        rows = {"obs": rng.normal(size=(ENVS, 3)), "far": rng.normal(size=(ENVS, 2))}
        action = (
            rng.integers(0, 4, ENVS)
            if self.spaces.action.categories
            else rng.normal(size=(ENVS, 2)) * 0.3
        )
        return rows, action, -1 - rng.random(ENVS, np.float32), rng.normal(size=ENVS)

    def _flags(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        dice = random.Random(self.seed)
        flags = np.zeros((LENGTH, ENVS), np.uint8)
        for column in range(ENVS):
            for t in range(LENGTH):
                over = t and flags[t - 1, column] & (TERMINATED | TRUNCATED)
                flags[t, column] = (
                    DEAD if over else dice.choice((0, 0, 0, 0, TERMINATED, TRUNCATED))
                )
        return flags


def loss_of(
    name: str, played: Played, model: Model, tensors: dict[str, Tensor], **more: Any
) -> tuple[Sample, Loss]:
    """As the train loop does; `steps`: in the whole batch."""
    sample = sample_of(tensors, played.spaces, previous=played.model.previous, unrolls=1)
    told: dict[str, Any] = {"name": name, "normalise_advantages": more["normalised"], **CONFIG}
    config = AlgorithmConfig(**told)
    output = model(sample.obs, sample.memory, sample.begins)
    given: dict[str, Any] = {
        "config": config,
        "coefs": Coefficients(clip=0.2, entropy_coef=0.02, kl_coef=0.1),
        "distribution": model.distribution,
        "norm": LossNorm(steps=more["steps"]),
    }
    if name == "ppo":
        with torch.no_grad():
            sample = with_targets(
                sample, gae_targets(LossInputs(**given, output=output, batch=sample.loss))
            )
        output = model(sample.obs, sample.memory, sample.begins)
    target = None
    if name == "appo":
        torch.manual_seed(5)
        other = build(played.model, played.spaces, seed=9)
        with torch.no_grad():
            target = other(sample.obs, sample.memory, sample.begins)
    return sample, LOSSES[name](
        LossInputs(**given, output=output, batch=sample.loss, target=target)
    )


def gradients(model: Model, total: Any) -> list[Tensor]:
    model.zero_grad()
    total.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def played_of(kind: str, action: Action, counts: list[int], seed: int) -> tuple[Played, Model]:
    played = Played(Spaces(LEAVES, action), MODELS[kind], counts, seed)
    return played, build(played.model, played.spaces, seed=1)


@pytest.mark.parametrize(
    ("kind", "action"), [*((kind, discrete(4)) for kind in MODELS), ("mlp", NUMBERS)]
)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("count", [1, 5])
def test_targets_loss_and_gradients_are_those_of_the_shorter_unroll(
    name: str, kind: str, action: Action, count: int
) -> None:
    played, model = played_of(kind, action, [count] * ENVS, seed=count)
    early, whole = played.batch(LENGTH), played.batch(count)
    steps = int(((whole["flags"] & DEAD) == 0).sum())
    for normalised in (False, True):
        more = {"steps": max(1, steps), "normalised": normalised}
        sample, loss = loss_of(name, played, model, early, **more)
        reference, expected = loss_of(name, played, model, whole, **more)
        found = gradients(model, loss.total)
        torch.testing.assert_close(found, gradients(model, expected.total), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss.stats, expected.stats, rtol=1e-4, atol=1e-6)
        live = sample.loss.live[:count] > 0
        torch.testing.assert_close(loss.vs[:count][live], expected.vs[live], rtol=1e-5, atol=1e-6)
        assert not sample.loss.live[count:].any()
        if sample.loss.targets is not None and reference.loss.targets is not None:
            mine, theirs = sample.loss.targets.advantages, reference.loss.targets.advantages
            torch.testing.assert_close(mine[:count][live], theirs[live], rtol=1e-4, atol=1e-5)
        alike = zip(
            moments(loss.vs.unsqueeze(-1), sample.loss.live, lambda sums: sums),
            moments(expected.vs.unsqueeze(-1), reference.loss.live, lambda sums: sums),
            strict=True,
        )
        for one, other in alike:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", LOSSES)
def test_each_column_ends_where_its_own_part_did(name: str, kind: str) -> None:
    """The loss of the whole is the sum of its columns', each a whole unroll of its own length."""
    counts = [2, LENGTH, 5]
    played, model = played_of(kind, discrete(4), counts, seed=3)
    early = played.batch(LENGTH)
    more = {"steps": int(((early["flags"] & DEAD) == 0).sum()), "normalised": False}
    found = gradients(model, loss_of(name, played, model, early, **more)[1].total)
    summed = [torch.zeros_like(gradient) for gradient in found]
    for column, count in enumerate(counts):
        alone = played.batch(count, slice(column, column + 1))
        _, loss = loss_of(name, played, model, alone, **more)
        summed = [a + b for a, b in zip(summed, gradients(model, loss.total), strict=True)]
    torch.testing.assert_close(found, summed, rtol=1e-4, atol=1e-6)
