"""`headrace rate` of a run of two policies: versions of the one play versions of the other."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.actors import evaluator
from headrace.actors.acting.opponents import RANDOM
from headrace.actors.acting.own_seed import own_seed
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.evaluator import Seated
from headrace.actors.policies.seats import seated
from headrace.launch.config.run_file import ConfigError
from headrace.launch.ratings.rated import Rated
from headrace.launch.results import loaded_run
from headrace.learner.spaces import Spaces


class _Side(NamedTuple):
    """Holds one policy's agents, and who may play them."""

    env: EnvConfig
    spaces: Spaces
    agents: tuple[str, ...]
    players: dict[str, PolicyLike]  # by name


def between_policies(
    folders: Sequence[Path],
    newest: Sequence[loaded_run.LoadedRun],
    how: EvaluateConfig,
    *,
    players: int,
    others: Sequence[str],
) -> Rated:
    """Plays everybody of the one policy's against everybody of the other's. ConfigError where these
    are not two policies."""
    if len(folders) != 2:
        raise ConfigError(
            f"{folders[0].parent} has {len(folders)} policies; games are rated between two"
        )
    if others:
        raise ConfigError(
            f"--against {others[0]}: of two policies it does not say for which; name it in"
            " league.others of the policy that is to meet it"
        )
    seats, rest = seated([one.run.env for one in newest])
    first, second = (
        _Side(
            one.run.env,
            one.spaces,
            own.agents,
            # Whom the other's league names plays in place of this one.
            dict(_players(folder, other.run.league.others, one.spaces, players, how.seed)),
        )
        for folder, one, other, own in zip(folders, newest, newest[::-1], seats, strict=True)
    )
    untrained = loaded_run.untrained_players(rest, how.seed)
    names = [*first.players, *second.players]
    results = np.zeros((len(names), len(names), 3), np.int64)
    for name, player in first.players.items():
        for other, opponent in second.players.items():
            seat = Seated(opponent, second.spaces, second.agents)
            scores = evaluator.play(player, first.env, first.spaces, how, others=[seat, *untrained])
            results[names.index(name), names.index(other)] = scores.outcomes
    return Rated.of(names, results)


def _players(
    folder: Path, others: Sequence[str], spaces: Spaces, most: int, seed: int
) -> Iterator[tuple[str, PolicyLike]]:
    """Yields random, these others, and checkpoints of a policy, with their names."""
    seed = own_seed(seed, folder.name)
    for name in dict.fromkeys((RANDOM, *others)):
        player = loaded_run.named_player("league.others", name, spaces, seed)
        yield f"{folder.name} {name}", player
    for version in loaded_run.spread(loaded_run.versions(folder, "checkpoints", "best"), most):
        found = loaded_run.load(folder, str(version))
        yield f"{folder.name} {version}", loaded_run.policy_of(found, seed=seed + version)
