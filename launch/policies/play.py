"""`headrace play` of a run of several policies: all of them, in the same episodes."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.actors.envs.make import make_any
from headrace.actors.evaluator import Seated
from headrace.actors.policies.seats import seats_of, untrained
from headrace.launch.config import starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import runtime
from headrace.launch.results import loaded_run, play


def play_all(run_dir: Path, *, which: str | None, video: Path | None, **how: Any) -> int:
    """Plays the episodes once for the score of each policy; returns the exit status."""
    found = starts.policy_folders(run_dir)
    if which is not None and which.isdecimal():
        raise ConfigError("--checkpoint: each policy has versions of its own; best or newest")
    seated = _seated([loaded_run.load(folder, which) for folder in found])
    for number, folder in enumerate(found):
        others = [one for at, one in enumerate(seated) if at != number]
        play.play(folder, which=which, video=None if number else video, others=others, **how)
    return runtime.OK


def _seated(policies: Sequence[loaded_run.LoadedRun]) -> list[Seated]:
    """Returns who plays: first these policies, then those that nobody trains."""
    configs = [one.run.env for one in policies]
    named = untrained(configs[0])
    with contextlib.closing(make_any(configs[0])) as env:
        seats = seats_of(env, [*configs, *(config for _, config in named)])
    players = [
        *(loaded_run.policy_of(one, seed=number) for number, one in enumerate(policies, start=1)),
        *(
            loaded_run.named_player("env.others", name, own.spaces, seed=0)
            for (name, _), own in zip(named, seats[len(policies) :], strict=True)
        ),
    ]
    return [
        Seated(player, own.spaces, own.agents) for player, own in zip(players, seats, strict=True)
    ]
