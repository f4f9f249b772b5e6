"""Keys that were set and do nothing, each because of a choice that the run has not made, and keys
that work against each other. Pure, save that `warn` logs it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.launch.config import algorithm_defaults
from headrace.launch.config.run_file import Run, to_dict
from headrace.learner.config import NORMALISED_KINDS

log = logging.getLogger(__name__)

_REPLAY = ("replay_share", "replay_unrolls", "replay_pick")
_RING = ("buffer_batches", "uses")
_TARGET = ("target_interval", "target_rate", "kl_coef", "kl_target")
_EPOCHS = ("epochs", "minibatches", "kl_stop", "value_clip")
_RHO = ("rho_clip", "c_clip", "pg_rho_clip")


class _Rule(NamedTuple):
    """Says that where `here` holds, these keys of the section do nothing, because of `why`."""

    why: str
    here: Callable[[Run], bool]
    section: str
    keys: tuple[str, ...]


_RULES = (
    _Rule(
        'algorithm.name = "ppo"',
        lambda run: run.algorithm.name == "ppo",
        "algorithm",
        ("drift_limit", *_RING, *_TARGET, *_RHO, *_REPLAY),
    ),
    _Rule(
        'algorithm.name = "impala"',
        lambda run: run.algorithm.name == "impala",
        "algorithm",
        ("clip", *_EPOCHS, *_RING, *_TARGET),
    ),
    _Rule(
        'algorithm.name = "appo"',
        lambda run: run.algorithm.name == "appo",
        "algorithm",
        (*_EPOCHS, *_REPLAY),
    ),
    _Rule(
        "algorithm.replay_share = 0",
        lambda run: run.algorithm.name == "impala" and not run.algorithm.replay_share,
        "algorithm",
        ("replay_unrolls", "replay_pick"),
    ),
    _Rule(
        "algorithm.uses = 1",
        lambda run: run.algorithm.name == "appo" and run.algorithm.uses == 1,
        "algorithm",
        ("buffer_batches",),
    ),
    _Rule(
        'learner.optimiser = "adam"',
        lambda run: run.learner.optimiser == "adam",
        "learner",
        ("decay", "momentum"),
    ),
    _Rule(
        'model.core = "none"',
        lambda run: run.model.core == "none",
        "model",
        ("core_units", "core_bias"),
    ),
    _Rule(
        "model.core is not transformer",
        lambda run: run.model.core != "transformer",
        "model",
        ("core_context", "core_layers"),
    ),
    _Rule(
        "league.share = 0",
        lambda run: not run.league.share and not run.env.agents,
        "league",
        ("every", "keep", "others", "pick"),
    ),
    _Rule("env.population = 0", lambda run: not run.env.population, "env", ("policy",)),
    _Rule(
        "env.population = 0",
        lambda run: not run.env.population,
        "learner",
        ("spread", "replace_every"),
    ),
    _Rule("it is the only policy", lambda run: not run.env.agents, "learner", ("together",)),
    _Rule(
        "model.kind is neither auto nor mlp",
        lambda run: run.model.kind not in ("auto", "mlp"),
        "model",
        ("hidden", "activation"),
    ),
    _Rule(
        "model.kind is none of auto, nature and resnet",
        lambda run: run.model.kind not in ("auto", *NORMALISED_KINDS),
        "model",
        ("normalise_images",),
    ),
)


def unused(run: Run) -> Iterator[str]:
    """Yields one sentence for each key that differs from its default and changes nothing."""
    chosen = algorithm_defaults.of(to_dict(run))
    for rule in _RULES:
        if not rule.here(run):
            continue
        given = getattr(run, rule.section)
        plain = _defaults(type(given))
        for key in rule.keys:
            if getattr(given, key) != chosen.get(f"{rule.section}.{key}", plain[key]):
                yield f"{rule.section}.{key} is set, and does nothing: {rule.why}"


class _Fight(NamedTuple):
    """Says that where `here` holds, two settings work against each other."""

    here: Callable[[Run], bool]
    words: str


_FIGHTS = (
    _Fight(
        lambda run: run.algorithm.name == "ppo" and run.pacing.max_lag > 1,
        "pacing.max_lag is above 1, and PPO does not correct for what older weights played: lower"
        " it, or take algorithm.name=appo",
    ),
    _Fight(
        lambda run: run.model.core != "none" and run.unroll.length < 16,
        "unroll.length is below 16, and model.core learns only from what lies in one unroll: make"
        " it twice the steps that are to be remembered",
    ),
    _Fight(
        lambda run: run.model.normalise_obs and bool(run.model.obs_scale),
        "model.obs_scale scales what model.normalise_obs has scaled already: leave one of them out",
    ),
    _Fight(
        lambda run: run.model.normalise_returns and run.algorithm.reward_scale != 1,
        "algorithm.reward_scale is undone by model.normalise_returns: leave one of them out",
    ),
)


def fights(run: Run) -> Iterator[str]:
    """Yields one sentence for each pair of settings that work against each other."""
    return (fight.words for fight in _FIGHTS if fight.here(run))


def doubts(run: Run) -> Iterator[str]:
    """Yields one sentence for each unused key, and for each fight."""
    yield from unused(run)
    yield from fights(run)


def warn(run: Run) -> None:
    """Logs the doubts at the start of a run."""
    for sentence in doubts(run):
        log.warning("%s", sentence)


def _defaults(section: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(section())
