"""The cost of each part of a run alone, on one core: environment, inference, training."""

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.actors.acting.networks import ActingNetwork
from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.envs.agents.kinds import AnyPlay, agents_in, play_of, takes_turns
from headrace.actors.envs.make import make_any, make_vector, probe
from headrace.launch.config import algorithm_defaults
from headrace.launch.config.run_file import Run
from headrace.launch.process import runtime
from headrace.learner.algorithms.loss_inputs import Coefficients, LossBatch, LossInputs, LossNorm
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.batches.frames import observed
from headrace.learner.models.build import build, chosen_kind
from headrace.learner.models.precision import autocast
from headrace.learner.spaces import Spaces, unroll_fields


def costs(run: Run) -> dict[str, float]:
    """Returns the seconds of one core that each part of an IMPALA run takes per agent step."""
    torch.set_num_threads(1)
    spaces = probe(run.env)
    return {
        "environment": _env_s(run, spaces),
        "inference": _infer_s(run, spaces),
        "training": _train_s(run, spaces),
    }


def sum_of_parts_per_s(parts: dict[str, float]) -> float:
    """Returns steps a second if all cores did nothing but step, infer and train."""
    return runtime.cores() / sum(parts.values())


def _env_s(run: Run, spaces: Spaces) -> float:
    """Measures a group by the environment's own vector class, or a single environment, whichever
    way the run steps."""
    rng, convert, envs = np.random.default_rng(0), ActionConverter(spaces.action), run.unroll.envs
    if run.actor.stepping == "vector":
        drawn = [convert.many(random_rows(spaces.action, rng, envs)) for _ in range(64)]
        vector = make_vector(run.env, envs)
        vector.reset(seed=1)
        with contextlib.closing(vector):
            return _per_call(lambda i: vector.step(drawn[i % 64])) / envs
    actions = convert.each(random_rows(spaces.action, rng, 64))
    env: Any = make_any(run.env)
    if agents_in(env):
        play = play_of(env)
        # Of agents that act at the same time, one's part.
        return _agents_s(play, actions) / (1 if takes_turns(env) else len(play.agents))
    env.reset(seed=1)

    def step(i: int) -> None:
        _, _, ended, cut, _ = env.step(actions[i % 64])
        if ended or cut:
            env.reset()

    with contextlib.closing(env):
        return _per_call(step)


def _agents_s(play: AnyPlay, actions: list[Any]) -> float:
    """Measures a step of an environment of several agents."""
    play.reset(1)

    def step(i: int) -> None:
        play.step({agent: actions[(i + at) % 64] for at, agent in enumerate(play.acting)})
        if play.over:
            play.reset(None)

    with contextlib.closing(play.env):
        return _per_call(step)


def _infer_s(run: Run, spaces: Spaces) -> float:
    envs, rng = run.unroll.envs, np.random.default_rng(0)
    acting = ActingNetwork(build(run.model, spaces, seed=0), spaces, run.actor.precision)
    obs = {
        leaf.name: rng.integers(0, 255, (envs, *leaf.seen)).astype(leaf.dtype)
        for leaf in spaces.observation
    }
    return _per_call(lambda _: acting.params(obs)[0]) / envs


def _train_s(run: Run, spaces: Spaces) -> float:
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

    settled = algorithm_defaults.settled(
        run, kind=chosen_kind(run.model, spaces), limit=0, numbers=spaces.action.numbers
    )

    def step(_: int) -> None:
        with autocast("cpu", run.learner.precision, model):
            output = model(observed(batch, spaces))
        given = LossInputs(
            config=settled.algorithm,
            coefs=Coefficients(clip=0.2, entropy_coef=0.01, kl_coef=0.0),
            distribution=model.distribution,
            output=output,
            batch=recorded,
            norm=LossNorm(steps=steps),
        )
        loss = LOSSES["impala"](given)
        optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        optimiser.step()

    return _per_call(step) / steps


def _per_call(call: Callable[[int], object], *, seconds: float = 1.0, repeats: int = 3) -> float:
    """Returns the seconds per call, the median of three measurements."""
    for i in range(10):
        call(i)
    found = []
    for _ in range(repeats):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            call(count)
            count += 1
        found.append((time.perf_counter() - began) / count)
    return statistics.median(found)
