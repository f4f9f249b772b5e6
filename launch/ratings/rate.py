"""`headrace rate`: plays what a run was at different times, and others, against each other.

Of one policy each of a pair plays one agent against the other, by turns each seat. Written to
league.json in the run's folder.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from headrace.actors import evaluator
from headrace.actors.acting.opponents import RANDOM
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EvaluateConfig
from headrace.actors.envs.make import look_at
from headrace.broker import durable
from headrace.launch.config import run_file, starts
from headrace.launch.process import runtime
from headrace.launch.ratings.rated import Rated
from headrace.launch.ratings.two_policies import between_policies
from headrace.launch.results import loaded_run
from headrace.launch.results.report import RATINGS
from headrace.launch.writing import writing

_SIDE_BY_SIDE = 32  # games


def rate(run_dir: Path, *, players: int, games: int, others: Sequence[str], greedy: bool) -> int:
    """Plays the games and prints the table; returns the exit status."""
    torch.set_num_threads(1)
    folders = starts.policy_folders(run_dir)
    newest = [loaded_run.load(folder, "newest") for folder in folders or [run_dir]]
    how = msgspec.structs.replace(
        newest[0].run.evaluate, episodes=games, envs=min(games, _SIDE_BY_SIDE), greedy=greedy
    )
    if folders:
        rated = between_policies(folders, newest, how, players=players, others=others)
    else:
        rated = _of_one(run_dir, newest[0], how, players=players, others=others)
    print(rated.table())  # noqa: T201
    with writing(run_dir / RATINGS):
        durable.write(run_dir / RATINGS, rated.as_json() + "\n")
    return runtime.OK


def _of_one(
    run_dir: Path,
    newest: loaded_run.LoadedRun,
    how: EvaluateConfig,
    *,
    players: int,
    others: Sequence[str],
) -> Rated:
    """Plays everybody against everybody, by turns each seat."""
    if newest.run.env.agents:
        raise run_file.ConfigError(
            f"{run_dir}: its policy plays only {', '.join(newest.run.env.agents)}, and cannot play"
            " against itself; of two policies rate the folder that holds both"
        )
    agents = look_at(newest.run.env)[1]
    evaluator.check_others(newest.run.env, agents, "rate")
    league: dict[str, PolicyLike] = {}
    for key, given in (
        ("league.others", (RANDOM, *newest.run.league.others)),
        ("--against", others),
    ):
        for name in given:
            league[name] = loaded_run.named_player(key, name, newest.spaces, how.seed)
    for version in loaded_run.spread(loaded_run.versions(run_dir, "checkpoints", "best"), players):
        found = loaded_run.load(run_dir, str(version))
        league[str(version)] = loaded_run.policy_of(found, seed=how.seed + version)
    names = list(league)
    results = np.zeros((len(names), len(names), 3), np.int64)
    # Of two agents each pair's games say all; of more it matters who is alone.
    pairs = itertools.combinations if agents == 2 else itertools.permutations
    for first, second in pairs(range(len(names)), 2):
        scores = evaluator.play(
            league[names[first]], newest.run.env, newest.spaces, how, against=league[names[second]]
        )
        results[first, second] = scores.outcomes
    return Rated.of(names, results)
