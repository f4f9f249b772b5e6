"""The cost of each part of a CartPole run alone, on one core: environment, inference, training."""

import time
from collections.abc import Callable

import numpy as np
import torch

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, make_vector, probe
from headrace.learner.algorithms.loss_inputs import Coefficients, LossBatch, LossNorm
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.models.build import build

_CORES = 2


def sum_of_parts(kind: str, *, envs: int, batch: int, cores: int = _CORES) -> float:
    """Returns steps a second if all cores did nothing but step, infer and train."""
    torch.set_num_threads(1)
    each = _env_s(kind, envs) + _infer_s(envs) + _train_s(batch)
    return cores / each


def _env_s(kind: str, envs: int) -> float:
    config = EnvConfig()
    if kind == "vector":
        vector = make_vector(config, envs)
        vector.reset()
        actions = np.random.default_rng(0).integers(0, 2, (64, envs))
        return _per_call(lambda i: vector.step(actions[i % 64])) / envs
    env = make_env(config)
    env.reset()

    def step(i: int) -> None:
        _, _, ended, cut, _ = env.step(i & 1)
        if ended or cut:
            env.reset()

    return _per_call(step)


def _infer_s(envs: int) -> float:
    model = build(ModelConfig(), probe(EnvConfig()), seed=0)
    obs = {"obs": torch.randn(envs, 4)}
    with torch.inference_mode():
        return _per_call(lambda _: model.policy(obs)) / envs


def _train_s(batch: int) -> float:
    model = build(ModelConfig(), probe(EnvConfig()), seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
    length = 16
    columns = max(1, batch // length)
    obs = {"obs": torch.randn(length + 1, columns, 4)}
    recorded = LossBatch(
        torch.zeros(length, columns, dtype=torch.int64),
        torch.full((length, columns), -0.69),
        torch.ones(length, columns),
        torch.zeros(length, columns, dtype=torch.uint8),
    )
    norm = LossNorm(steps=length * columns)

    def step(_: int) -> None:
        loss = LOSSES["impala"](
            AlgorithmConfig(),
            Coefficients(clip=0.2, entropy_coef=0.01, kl_coef=0.0),
            distribution=model.distribution,
            output=model(obs),
            batch=recorded,
            target=None,
            norm=norm,
        )
        optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        optimiser.step()

    return _per_call(step) / (length * columns)


def _per_call(call: Callable[[int], object], *, seconds: float = 0.7) -> float:
    for i in range(10):
        call(i)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        call(count)
        count += 1
    return (time.perf_counter() - began) / count
