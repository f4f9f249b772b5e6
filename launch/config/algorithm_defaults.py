"""The defaults of each algorithm: what a run trains by that names an environment and an algorithm.

A key that the run file or --set gives stays as it is given. Keys that are not here have one default
for all algorithms, in the struct of their section. What is "auto" follows the environment, and so
only the learner knows it: settled().
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from headrace.actors.config import EvaluateConfig
from headrace.launch.config.run_sections import Run
from headrace.learner.config import NORMALISED_KINDS, AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig

Tables: TypeAlias = dict[str, dict[str, Any]]  # what stands in a run file, by section
Known: TypeAlias = Mapping[str, Any]  # "section.key" -> its value, of those that are known

_REMEMBERED_STEPS = 4096  # by IMPALA
_MOST_KL = 0.02  # of PPO's policy from the one that acted; then it leaves the batch
# Columns of a batch, each played by another policy of a population: a version, and an optimiser
# step, cost little more for several policies than for one. With 64 of them an environment plays
# many unrolls before the first is trained on, and learns far less from each.
_POLICIES_AT_ONCE = 16
# Of PPO by the network: its step size, and the steps that one optimiser step trains on.
_LARGE_STEPS: Final = {"grid": (1e-3, 256), "nature": (5e-4, 256), "resnet": (5e-4, 256)}
_SMALL_STEPS: Final = (3e-4, 64)
_TRACE = 0.95  # lambda
# Of PPO: the weight of the entropy bonus, and lambda, by whether numbers act in long episodes.
_SHORT_OR_CHOICES: Final = (0.01, _TRACE)
_LONG_BY_NUMBERS: Final = (0.003, 0.97)
# Of APPO: optimiser steps for each batch, and the weight of the entropy bonus, by whether the
# actions are numbers, or else choices from large pictures.
LEAST_USES: Final = 8
_CHOICES: Final = (LEAST_USES, 0.003)
_NUMBERS: Final = (16, 0.01)
_CHOICES_FROM_PICTURES: Final = (2, 0.02)
# Of APPO: unrolls in a batch where frames are stacked, as they are of pictures.
_STACKED_UNROLLS = 4
# The discount, and where episodes may have so many steps.
_NEAR, _FAR, _LONG = 0.99, 0.998, 1000


def _unless_scaled_obs(run: Known) -> bool:
    """Becomes false where model.obs_scale is set."""
    return not run.get("model.obs_scale")


def _of_large_images(run: Known) -> bool:
    """Becomes false where model.normalise_obs is set to false, as in all runs of older releases, or
    model.kind to another than auto, nature and resnet."""
    large = run.get("model.kind", "auto") in ("auto", *NORMALISED_KINDS)
    return large and bool(run.get("model.normalise_obs", True))


def _unless_scaled_rewards(run: Known) -> bool:
    """Becomes false where algorithm.reward_scale is set."""
    return bool(run.get("algorithm.reward_scale", 1.0) == 1.0)


def _kl_stop(run: Known) -> float:
    """Equals 0 with env.population: the mean KL of unlike policies would stop them all."""
    return 0.0 if run.get("env.population") else _MOST_KL


def _one_unroll(run: Known) -> int:
    """Equals 1; with env.population as many as have 16 columns, or one column for each policy."""
    return max(1, _unrolls_of_many(run))


def _two_unrolls(run: Known) -> int:
    """Equals 2; with env.population as many as have 16 columns, or one column for each policy."""
    return max(2, _unrolls_of_many(run))


def _more_of_stacked(run: Known) -> int:
    """Equals 1, or 4 where env.stack is above 1; with env.population as many as have 16 columns, or
    one column for each policy, if that is more."""
    stacked = run.get("env.stack", 1) > 1
    return max(_STACKED_UNROLLS if stacked else 1, _unrolls_of_many(run))


def _unrolls_of_many(run: Known) -> int:
    policies: int = run.get("env.population", 0)
    envs: int = run["unroll.envs"]
    return min(policies, _POLICIES_AT_ONCE) // envs


def _newest_unrolls(run: Known) -> int:
    """Holds about 4096 steps; without algorithm.replay_share it does nothing, and is 256."""
    if not run["algorithm.replay_share"]:
        return AlgorithmConfig().replay_unrolls
    steps: int = run["unroll.length"] * run["unroll.envs"]
    return max(1, _REMEMBERED_STEPS // steps)


def _as_many_as_uses(run: Known) -> int | str:
    """Equals algorithm.uses."""
    uses: int | str = run["algorithm.uses"]
    return uses


def _two_batches(run: Known) -> int | str:
    """Equals twice algorithm.uses: two batches."""
    uses: int | str = run["algorithm.uses"]
    return 2 * uses if isinstance(uses, int) else uses


def _more_for_a_goal(run: Known) -> float:
    """Equals 0.2 where stop.metric is "evaluation", or evaluation.NAME: an evaluation ends the
    run."""
    by_evaluation = str(run.get("stop.metric")).partition(".")[0] == "evaluation"
    return 0.2 if by_evaluation else EvaluateConfig().share


# A key's default, or the rule that gives it from what else the run says.
Default: TypeAlias = float | str | Callable[[Known], float | str]

_EVERY: Final[dict[str, Default]] = {
    "model.normalise_images": _of_large_images,
    "model.normalise_obs": _unless_scaled_obs,
    "model.normalise_returns": _unless_scaled_rewards,
    "algorithm.trace": _TRACE,
    "learner.grad_clip": 0.5,
    "evaluate.share": _more_for_a_goal,
}
DEFAULTS: Final[dict[str, dict[str, Default]]] = {
    "ppo": {
        # 128 x 8 x 2 = 2048 steps in a batch, 10 x 32 = 320 optimiser steps, or for pictures 10 x 8
        # larger ones; sampling waits.
        "unroll.length": 128,
        "unroll.envs": 8,
        "pacing.batch_unrolls": _two_unrolls,
        "pacing.max_lag": 0,
        **_EVERY,
        # Far rewards count where episodes are long: a lander is to land before its limit, and not
        # to hover, which is what numbers do that are kept wide.
        "algorithm.gamma": "auto",
        "algorithm.trace": "auto",
        "algorithm.normalise_advantages": True,
        # Ten uses of a batch narrow a policy soon; without it some runs stop short of their goal.
        "algorithm.entropy_coef": "auto",
        "algorithm.epochs": 10,
        "algorithm.minibatches": "auto",
        # A policy that one batch has moved too far, some seeds do not find again.
        "algorithm.kl_stop": _kl_stop,
        "learner.lr": "auto",
    },
    "appo": {
        # 32 x 4 x 1 = 128 steps in a batch, 8 or 16 optimiser steps for each, on the newest ones;
        # of pictures 2, as each costs far more than to play, on four times as many steps.
        "unroll.length": 32,
        "unroll.envs": 4,
        "pacing.batch_unrolls": _more_of_stacked,
        "pacing.max_lag": 2,
        **_EVERY,
        "algorithm.gamma": "auto",
        # A batch is a few episodes at one time: better or worse than was expected as a whole.
        "algorithm.normalise_advantages": "running",
        # Numbers learn from more steps on each batch, and then have to be kept wide. So has what
        # sees pictures, which a few steps on each make certain of one move.
        "algorithm.entropy_coef": "auto",
        "algorithm.drift_limit": 0.2,
        "algorithm.uses": "auto",
        "algorithm.buffer_batches": _as_many_as_uses,
        "algorithm.target_interval": _two_batches,
        "learner.lr": 1e-3,
    },
    "impala": {
        # 32 x 2 x 1 = 64 new steps in a batch, beside them 3 x 64 of the newest 4096; one optimiser
        # step on all.
        "unroll.length": 32,
        "unroll.envs": 2,
        "pacing.batch_unrolls": _one_unroll,
        "pacing.max_lag": 2,
        **_EVERY,
        "algorithm.normalise_advantages": "running",
        "algorithm.entropy_coef": 0.01,
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


class Settled(NamedTuple):
    """Holds what a learner trains by: numbers, where its run says "auto"."""

    algorithm: AlgorithmConfig
    learner: LearnerConfig
    said: tuple[str, ...]  # "learner.lr is 0.001: the network is grid"


def settled(run: Run, *, kind: str, limit: int, numbers: int) -> Settled:
    """Settles what the environment decides. `kind`: of the network; `limit`: most steps of an
    episode, 0 = nobody knows; `numbers`: in an action, 0 = it is choices alone."""
    lr, steps = _LARGE_STEPS.get(kind, _SMALL_STEPS)
    own = DEFAULTS[run.algorithm.name]["learner.lr"]
    known = f"at most {limit} steps" if limit else "no known limit"
    is_long = limit >= _LONG
    pictures = kind in NORMALISED_KINDS and not numbers
    uses, entropy_coef = _CHOICES_FROM_PICTURES if pictures else _NUMBERS if numbers else _CHOICES
    acts = f"actions are {'numbers' if numbers else 'choices'}"
    acts += f", the network is {kind}" if pictures else ""
    trace, looks = _TRACE, acts
    if run.algorithm.name == "ppo":
        entropy_coef, trace = _LONG_BY_NUMBERS if numbers and is_long else _SHORT_OR_CHOICES
        looks = f"{acts}, episodes have {known}"
    if run.algorithm.uses != "auto":
        uses = run.algorithm.uses
    found: dict[str, tuple[float, str]] = {
        "algorithm.uses": (uses, acts),
        "algorithm.buffer_batches": (uses, "as many as uses"),
        "algorithm.target_interval": (2 * uses, "twice uses"),
        "algorithm.entropy_coef": (entropy_coef, looks),
        "algorithm.gamma": (_FAR if is_long else _NEAR, f"episodes have {known}"),
        "algorithm.trace": (trace, looks),
        "algorithm.minibatches": (_parts(run, steps), f"the network is {kind}"),
        "learner.lr": (own if isinstance(own, float) else lr, f"the network is {kind}"),
    }
    sections: dict[str, Any] = {"algorithm": run.algorithm, "learner": run.learner}
    said = []
    for place, (value, why) in found.items():
        section, _, key = place.partition(".")
        if getattr(sections[section], key) == "auto":
            sections[section] = replace(sections[section], **{key: value})
            said.append(f"{place} is {value}: {why}")
    return Settled(**sections, said=tuple(said))


def _parts(run: Run, steps: int) -> int:
    """Counts the parts of a batch that have about so many steps; with model.core, which learns from
    whole columns, no more than columns; with env.population of each column, which one policy
    plays."""
    columns = 1 if run.env.population else run.unroll.envs * run.pacing.batch_unrolls
    parts = max(1, run.unroll.length * columns // steps)
    return parts if run.model.core == "none" else min(parts, columns)
