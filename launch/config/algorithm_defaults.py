"""The defaults of each algorithm: what a run trains by that names an environment and an algorithm.

A key that the run file or --set gives stays as it is given. Keys that are not here have one default
for all algorithms, in the struct of their section.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from headrace.actors.config import EvaluateConfig
from headrace.learner.config import AlgorithmConfig

Tables: TypeAlias = dict[str, dict[str, Any]]  # what stands in a run file, by section
Known: TypeAlias = Mapping[str, Any]  # "section.key" -> its value, of those that are known

# Steps that one optimiser step of PPO trains on, and steps that IMPALA remembers.
_PART_STEPS, _REMEMBERED_STEPS = 64, 4096
_MOST_KL = 0.02  # of PPO's policy from the one that acted; then it leaves the batch


def _unless_scaled_obs(run: Known) -> bool:
    """Becomes false where model.obs_scale is set."""
    return not run.get("model.obs_scale")


def _unless_scaled_rewards(run: Known) -> bool:
    """Becomes false where algorithm.reward_scale is set."""
    return bool(run.get("algorithm.reward_scale", 1.0) == 1.0)


def _minibatches(run: Known) -> int:
    """Makes parts of about 64 steps; with model.core, which learns from whole columns, no more than
    columns; with env.population of 64 steps in each column, which one policy plays."""
    columns: int = run["unroll.envs"] * run["pacing.batch_unrolls"]
    if run.get("env.population"):
        columns = 1
    parts: int = max(1, run["unroll.length"] * columns // _PART_STEPS)
    return parts if run.get("model.core", "none") == "none" else min(parts, columns)


def _kl_stop(run: Known) -> float:
    """Equals 0 with env.population: the mean KL of unlike policies would stop them all."""
    return 0.0 if run.get("env.population") else _MOST_KL


def _newest_unrolls(run: Known) -> int:
    """Holds about 4096 steps; without algorithm.replay_share it does nothing, and is 256."""
    if not run["algorithm.replay_share"]:
        return AlgorithmConfig().replay_unrolls
    steps: int = run["unroll.length"] * run["unroll.envs"]
    return max(1, _REMEMBERED_STEPS // steps)


def _as_many_as_uses(run: Known) -> int:
    """Equals algorithm.uses."""
    uses: int = run["algorithm.uses"]
    return uses


def _two_batches(run: Known) -> int:
    """Equals twice algorithm.uses: two batches."""
    uses: int = run["algorithm.uses"]
    return 2 * uses


def _more_for_a_goal(run: Known) -> float:
    """Equals 0.2 where stop.metric is "evaluation", or evaluation.NAME: an evaluation ends the
    run."""
    by_evaluation = str(run.get("stop.metric")).partition(".")[0] == "evaluation"
    return 0.2 if by_evaluation else EvaluateConfig().share


# A key's default, or the rule that gives it from what else the run says.
Default: TypeAlias = float | str | Callable[[Known], float]

_EVERY: Final[dict[str, Default]] = {
    "model.normalise_obs": _unless_scaled_obs,
    "model.normalise_returns": _unless_scaled_rewards,
    "algorithm.trace": 0.95,
    "learner.grad_clip": 0.5,
    "evaluate.share": _more_for_a_goal,
}
DEFAULTS: Final[dict[str, dict[str, Default]]] = {
    "ppo": {
        # 128 x 8 x 2 = 2048 steps in a batch, 10 x 32 = 320 optimiser steps; sampling waits.
        "unroll.length": 128,
        "unroll.envs": 8,
        "pacing.batch_unrolls": 2,
        "pacing.max_lag": 0,
        **_EVERY,
        # Far rewards count where episodes are long: a lander is to land before its limit.
        "algorithm.gamma": "auto",
        "algorithm.normalise_advantages": True,
        # Ten uses of a batch narrow a policy soon; without it some runs stop short of their goal.
        "algorithm.entropy_coef": 0.01,
        "algorithm.epochs": 10,
        "algorithm.minibatches": _minibatches,
        # A policy that one batch has moved too far, some seeds do not find again.
        "algorithm.kl_stop": _kl_stop,
        "learner.lr": 3e-4,
    },
    "appo": {
        # 32 x 4 x 2 = 256 steps in a batch, 8 optimiser steps for each, on the newest 8.
        "unroll.length": 32,
        "unroll.envs": 4,
        "pacing.batch_unrolls": 2,
        "pacing.max_lag": 2,
        **_EVERY,
        # A batch is a few episodes at one time: better or worse than was expected as a whole.
        "algorithm.normalise_advantages": "running",
        "algorithm.entropy_coef": 0.003,
        # Wide for a choice; a density, whose deviation shrinks, may move by 1.8 or 1/1.8.
        "algorithm.drift_limit": 0.45,
        "algorithm.uses": 8,
        "algorithm.buffer_batches": _as_many_as_uses,
        "algorithm.target_interval": _two_batches,
        "learner.lr": 1e-3,
    },
    "impala": {
        # 16 x 2 x 1 = 32 new steps in a batch, beside them 3 x 32 of the newest 4096; one optimiser
        # step on all.
        "unroll.length": 16,
        "unroll.envs": 2,
        "pacing.batch_unrolls": 1,
        "pacing.max_lag": 2,
        **_EVERY,
        "algorithm.normalise_advantages": "running",
        "algorithm.entropy_coef": 0.001,
        "algorithm.drift_limit": 0.2,
        "algorithm.replay_share": 0.75,
        "algorithm.replay_unrolls": _newest_unrolls,
        "learner.lr": 2e-3,
    },
}


def of(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the defaults of the algorithm that the tables name: "section.key" -> the value that
    it has unless it is given."""
    given = {
        f"{section}.{key}": value for section, held in tables.items() for key, value in held.items()
    }
    table = DEFAULTS[given.get("algorithm.name", AlgorithmConfig().name)]
    known = {**{place: value for place, value in table.items() if not callable(value)}, **given}
    return {place: value(known) if callable(value) else value for place, value in table.items()}


def filled(tables: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Returns the tables with the defaults of their algorithm for what they leave out."""
    full = {section: dict(held) for section, held in tables.items()}
    for place, value in of(tables).items():
        section, _, key = place.partition(".")
        full.setdefault(section, {}).setdefault(key, value)
    return full
