"""A run's folder, read back: the trained network, without its environment and without a broker.

run.toml             the run
best/                the checkpoints that an evaluator found best, where there was one
checkpoints/         the learner's
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from headrace.actors.acting.opponents import RANDOM, player
from headrace.actors.acting.own_seed import own_seed
from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig, names_code
from headrace.actors.evaluator import Seated
from headrace.actors.policies.seats import Seats, seated
from headrace.broker.weights.blobs import Blob
from headrace.launch.config import differences, run_file, shared_run, starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.results import learning_curve
from headrace.learner.batches.policy_returns import TABLE
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.checkpoint import Checkpoint, CheckpointError
from headrace.learner.checkpoints.manifest import MANIFEST
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.models.population.population import Population
from headrace.learner.spaces import POLICY, Spaces
from headrace.learner.weights import FlatWeights, WeightsError, layout_digest

log = logging.getLogger(__name__)

_FOLDERS = {"best": "best", "newest": "checkpoints"}
_NOTHING_LEFT = "put back a copy of the folder, or train again"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Holds one checkpoint of a run, ready to act."""

    run: run_file.Run
    spaces: Spaces
    model: Model  # on the CPU
    path: Path
    version: int


def load(run_dir: Path, which: str | None = None) -> LoadedRun:
    """Loads the best checkpoint, the newest whole one, or that of a version; None = the best where
    there is one. ConfigError where the folder holds none that can be used."""
    run = starts.load_kept(run_dir)
    found = find_checkpoint(run_dir, which)
    _check_identity(found, run)
    spaces = _spaces(found)
    try:
        model = build(run.model, spaces, seed=0)
        model.load_state_dict(found.tensors["model"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{found.path} does not fit the network of {run_dir / 'run.toml'}:"
            f" {_first_difference(error)}"
        ) from error
    model.requires_grad_(False).eval()
    return LoadedRun(run, spaces, model, found.path, found.version)


def one_policy(found: LoadedRun, policy: int | None) -> LoadedRun:
    """Returns one policy of a population, as a run that trained it alone; None = there is no
    population. ConfigError where that is wrong."""
    many = found.model
    if not isinstance(many, Population):
        if policy is None:
            return found
        raise ConfigError(f"{found.path}: the run trained one policy, leave out which")
    count = found.spaces.population
    if policy is None or not 0 <= policy < count:
        raise ConfigError(
            f"{found.path} has a population: say which of its policies, 0 to {count - 1};"
            f" {TABLE} in the run's folder has their returns"
        )
    leaves = tuple(leaf for leaf in found.spaces.observation if leaf.name != POLICY)
    env = msgspec.structs.replace(found.run.env, population=0)
    return LoadedRun(
        msgspec.structs.replace(found.run, env=env),
        msgspec.structs.replace(found.spaces, observation=leaves, population=0),
        many.alone(policy).requires_grad_(False).eval(),
        found.path,
        found.version,
    )


def find_checkpoint(
    run_dir: Path, which: str | None, usable: Callable[[Checkpoint], object] = lambda _: None
) -> Checkpoint:
    """Reads the checkpoint; one for which `usable` raises CheckpointError is damaged, too."""
    if which is not None and which.isdecimal():
        return _of_version(run_dir, int(which), usable)
    if which is not None and which not in _FOLDERS:
        raise ConfigError(f"checkpoint {which!r}: it is {', '.join(_FOLDERS)} or a version")
    for name in (which,) if which else _FOLDERS:
        folder = run_dir / _FOLDERS[name]
        try:
            found = checkpoint.load_latest(folder, usable, score if name == "best" else None)
        except CheckpointError as error:
            # Its text advises how to go on training, which does not apply here.
            if which is None and name == "best":
                log.warning("every checkpoint in %s is damaged; the newest is taken", folder)
                continue
            hint = "take the newest, --checkpoint newest" if name == "best" else _NOTHING_LEFT
            raise ConfigError(f"every checkpoint in {folder} is damaged; {hint}") from error
        if found is not None:
            if which is None and name == "best":
                _tell_if_old(run_dir, found)
            return found
    if which == "best":
        raise ConfigError(
            f"{run_dir / 'best'} has no checkpoint: only an evaluator writes one"
            " (headrace train --evaluate); take the newest, --checkpoint newest"
        )
    raise ConfigError(f"{run_dir} has no checkpoint yet: nothing was trained in it")


def _tell_if_old(run_dir: Path, best: Checkpoint) -> None:
    """Warns where most of the training came after the last evaluation: what is best of those that
    were evaluated may be far from what the run has become."""
    evaluated = max(
        (line.get("version", 0) for line in learning_curve.read(run_dir / "evaluations.jsonl")),
        default=best.version,
    )
    newest = max(versions(run_dir, "checkpoints"), default=0)
    if newest > 2 * evaluated:
        log.warning(
            "version %d is taken, the best of those evaluated; training went on from version %d to"
            " %d without an evaluator: --checkpoint newest",
            best.version,
            evaluated,
            newest,
        )


def versions(run_dir: Path, *folders: str) -> list[int]:
    """Returns the versions of which there are checkpoints in these folders of a run, in order."""
    return sorted({int(p.name) for f in folders for p in (run_dir / f).glob("[0-9]" * 12)})


def _of_version(run_dir: Path, version: int, usable: Callable[[Checkpoint], object]) -> Checkpoint:
    folders, name = ("checkpoints", "best"), f"{version:012d}"
    path = next((p for f in folders if (p := run_dir / f / name).is_dir()), None)
    if path is None:
        kept = versions(run_dir, *folders)
        has = f"it has {', '.join(map(str, kept))}" if kept else "it has none"
        raise ConfigError(f"{run_dir} has no checkpoint of version {version}; {has}")
    try:
        found = checkpoint.load(path)
        usable(found)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    return found


def score(found: Checkpoint) -> float:
    """Returns the mean of weights in best/; CheckpointError when it does not say of which run."""
    found.entry(dict[str, dict[str, Any]], "identity", "shared")
    found.entry(str, "identity", "spaces")
    return found.entry(float, "score", "mean")


def _check_identity(found: Checkpoint, run: run_file.Run) -> None:
    """Raises ConfigError unless the checkpoint was trained by this very run."""
    try:
        there = found.entry(dict[str, dict[str, Any]], "identity", "shared")
        found.entry(str, "identity", "spaces")
    except CheckpointError as error:
        raise ConfigError(f"{found.path} does not say which run it is of") from error
    difference = differences.no_continuation(there, shared_run.shared(run))
    if difference is not None:
        raise ConfigError(
            f"{found.path} is of another model or run: {difference} (there = in the checkpoint,"
            " here = in run.toml)"
        )


def _spaces(found: Checkpoint) -> Spaces:
    try:
        spaces = msgspec.convert(found.state["spaces"], Spaces)
    except (KeyError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{found.path} does not say what its environment gives and takes: it was written by an"
            " older release; continue the run for a moment with --resume"
        ) from error
    if spaces.digest() != found.state["identity"]["spaces"]:
        raise ConfigError(f"{found.path} contradicts itself: its spaces are not those of its run")
    return spaces


def _first_difference(error: Exception) -> str:
    """Returns the first difference of torch's error, which lists every tensor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1] if isinstance(error, RuntimeError) and len(lines) > 1 else lines[0]


def policy_of(trained: LoadedRun, *, seed: int) -> Policy:
    """Returns a policy that acts as samplers and evaluators do, in float32 (no precision is
    lost)."""
    if seed < 0:
        raise ConfigError(f"seed {seed}: it must be 0 or above")
    made = Policy(trained.run.model, trained.spaces, seed=seed, precision="float32")
    try:
        made.load(_blob(trained))
    except WeightsError as error:
        raise ConfigError(f"{trained.path}: {error}") from error
    return made


def _blob(trained: LoadedRun) -> Blob:
    weights = FlatWeights(trained.model).dump()
    return Blob.of(trained.version, layout_digest(trained.model), weights)


def kept_weights(run_dir: Path, most: int) -> Iterator[Blob]:
    """Yields at most so many of the weights that a run's folder keeps, spread over its versions,
    the oldest first; none if it is no run's folder."""
    if not (run_dir / starts.RUN).is_file():
        return
    for version in spread(versions(run_dir, *_FOLDERS.values()), most):
        try:
            yield _blob(load(run_dir, str(version)))
        except ConfigError as error:  # as one that the learner has just removed
            log.debug("left out: %s", error)


def spread(versions: Sequence[int], count: int) -> list[int]:
    """Returns so many of them, evenly: the first, the last, and those between."""
    if len(versions) <= count:
        return list(versions)
    return [versions[at * (len(versions) - 1) // max(1, count - 1)] for at in range(count)]


Check: TypeAlias = Callable[[run_file.Run], None]


def trained_policy(folder: Path, seed: int, check: Check) -> tuple[EnvConfig, Policy]:
    """Returns the section that names a policy's agents, and what it has learned in the end."""
    check(starts.load_kept(folder))
    found = load(folder, "newest")
    return found.run.env, policy_of(found, seed=own_seed(seed, folder.name))


def opponent(
    how: EvaluateConfig, spaces: Spaces, check: Check = lambda _: None
) -> PolicyLike | None:
    """Returns who plays the other agents, as evaluate.against names it; None = nobody does."""
    if not how.against:
        return None
    return named_player("evaluate.against", how.against, spaces, how.seed, check)


def seated_others(
    env: EnvConfig, how: EvaluateConfig, check: Check = lambda _: None
) -> list[Seated]:
    """Returns who plays the agents that env.agents does not name, as env.others says."""
    if not env.agents and not env.others:
        return []
    return untrained_players(seated([env])[1], how.seed, check)


def untrained_players(
    others: Sequence[tuple[str, Seats]], seed: int, check: Check = lambda _: None
) -> list[Seated]:
    """Returns who plays agents that nobody trains, by the names in env.others."""
    return [
        Seated(named_player("env.others", name, own.spaces, seed, check), own.spaces, own.agents)
        for name, own in others
    ]


def named_player(
    key: str, against: str, spaces: Spaces, seed: int, check: Check = lambda _: None
) -> PolicyLike:
    """Returns who plays by this value of the setting `key`. ConfigError where it is nobody's name,
    or the policy of a run with other spaces. `check` gets the run of a folder before any code that
    it names is asked."""
    seed = own_seed(seed, against)
    if against == RANDOM or names_code(against):
        try:
            return player(against, spaces, seed, key)
        except OwnCodeError as error:
            raise ConfigError(str(error)) from error
    folder = Path(against)
    if not folder.is_dir():
        raise ConfigError(
            f"{key} = {against!r} is no folder of a run; it is random, module:function, or one"
        )
    one = (folder / MANIFEST).is_file()
    run_dir = folder.parent.parent if one else folder
    check(starts.load_kept(run_dir))
    found = load(run_dir, folder.name if one else None)
    if found.spaces.digest() != spaces.digest():
        raise ConfigError(
            f"{key} = {against!r}: its policy was trained for {found.spaces}; this environment has"
            f" {spaces}"
        )
    return policy_of(found, seed=seed)
