"""Breakout by `headrace train`, beside what its parts cost alone on this machine."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.actors.acting.networks import ActingNetwork
from headrace.actors.envs.make import make_vector, probe
from headrace.launch.bench import output as report
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.learner.algorithms.loss_inputs import Coefficients, LossBatch, LossNorm
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.batches.frames import observed
from headrace.learner.models.build import build
from headrace.learner.models.precision import autocast
from headrace.learner.spaces import Spaces, unroll_fields


def bench(*, run: str = "breakout", seconds: float = 90.0) -> dict[str, Any]:
    """Measures trained agent steps a second in steady state; the sum of the parts is what all cores
    would reach if they only stepped, inferred and trained, each measured alone on one core."""
    loaded = run_file.load(run)
    cores = runtime.cores()
    report.parameters(run=run, seconds=seconds, cores=cores)
    parts = costs(loaded)
    limit = cores / sum(parts.values())
    report.parameters(
        **{f"{name}_us": round(cost * 1e6, 1) for name, cost in parts.items()},
        sum_of_parts_per_s=round(limit, 1),
    )
    summary = train(run, ["--stop-seconds", str(seconds)])
    figures = {
        "run": run,
        "sampled_per_s": summary["steps_per_s"],
        "trained_per_s": summary["trained_steps_per_s"],
        "sum_of_parts_per_s": round(limit, 1),
        "ratio": round(summary["trained_steps_per_s"] / limit, 3),
        "wire_bytes_per_step": summary["wire_bytes_per_step"],
        "mean_return": summary["mean_return"],
        "trained_steps": summary["trained_steps"],
        "lag": summary["lag"],
        "peak_rss_mb": summary["peak_rss_mb"],
        "unrolls": summary["unrolls"],
    }
    report.result("atari", figures)
    return figures


def costs(run: run_file.Run) -> dict[str, float]:
    """Returns the seconds of one core that each part takes per agent step."""
    torch.set_num_threads(1)
    spaces = probe(run.env)
    envs = run.unroll.envs
    return {
        "environment": _env_s(run, envs),
        "inference": _infer_s(run, spaces, envs),
        "training": _train_s(run, spaces),
    }


def _env_s(run: run_file.Run, envs: int) -> float:
    vector = make_vector(run.env, envs)
    try:
        vector.reset(seed=1)
        actions = np.random.default_rng(0).integers(0, 3, (64, envs))
        return _per_call(lambda i: vector.step(actions[i % 64])) / envs
    finally:
        vector.close()


def _infer_s(run: run_file.Run, spaces: Spaces, envs: int) -> float:
    acting = ActingNetwork(build(run.model, spaces, seed=0), spaces, run.actor.precision)
    rng = np.random.default_rng(0)
    obs = {
        leaf.name: rng.integers(0, 255, (envs, *leaf.seen)).astype(leaf.dtype)
        for leaf in spaces.observation
    }
    return _per_call(lambda _: acting.params(obs)[0]) / envs


def _train_s(run: run_file.Run, spaces: Spaces) -> float:
    model = build(run.model, spaces, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-5, foreach=True)
    columns = run.unroll.envs * run.pacing.batch_unrolls
    fields = unroll_fields(spaces, length=run.unroll.length, envs=columns)
    rng = np.random.default_rng(0)
    batch = {f.name: torch.from_numpy(rng.integers(0, 2, f.shape).astype(f.dtype)) for f in fields}
    batch["flags"].zero_()
    batch["logp"].fill_(-1.4)
    recorded = LossBatch(batch["action"], batch["logp"], batch["reward"], batch["flags"])
    steps = run.unroll.length * columns

    def step(_: int) -> None:
        with autocast("cpu", run.learner.precision, model):
            output = model(observed(batch, spaces))
        loss = LOSSES["impala"](
            run.algorithm,
            Coefficients(clip=0.2, entropy_coef=0.01, kl_coef=0.0),
            distribution=model.distribution,
            output=output,
            batch=recorded,
            target=None,
            norm=LossNorm(steps=steps),
        )
        optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        optimiser.step()

    return _per_call(step) / steps


def _per_call(call: Callable[[int], object], *, seconds: float = 1.5, repeats: int = 3) -> float:
    """Returns the seconds per call, the median of three measurements."""
    for i in range(3):
        call(i)
    found = []
    for _ in range(repeats):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            call(count)
            count += 1
        found.append((time.perf_counter() - began) / count)
    return statistics.median(found)
