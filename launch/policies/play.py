"""`headrace play` of a run of several policies: all of them, in the same episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.actors.acting.own_seed import own_seed
from headrace.actors.evaluator import Seated
from headrace.actors.policies.seats import seated
from headrace.launch.config import starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import runtime
from headrace.launch.results import loaded_run, play


def play_all(run_dir: Path, *, which: str | None, video: Path | None, **how: Any) -> int:
    """Plays the episodes once for the score of each policy; returns the exit status. `which`: None
    = the newest, as the best of each may never have met."""
    which = which or "newest"
    found = starts.policy_folders(run_dir)
    if which.isdecimal():
        raise ConfigError("--checkpoint: each policy has versions of its own; best or newest")
    seated = _seated([loaded_run.load(folder, which) for folder in found])
    for number, folder in enumerate(found):
        others = [one for at, one in enumerate(seated) if at != number]
        play.play(folder, which=which, video=None if number else video, others=others, **how)
    return runtime.OK


def _seated(policies: Sequence[loaded_run.LoadedRun]) -> list[Seated]:
    """Returns who plays: first these policies, then those that nobody trains."""
    seats, others = seated([one.run.env for one in policies])
    own = [
        Seated(
            loaded_run.policy_of(one, seed=own_seed(0, one.run.run.name)), mine.spaces, mine.agents
        )
        for one, mine in zip(policies, seats, strict=True)
    ]
    return own + loaded_run.untrained_players(others, seed=0)
