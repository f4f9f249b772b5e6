"""Puts together the league of policies that learn in the same environments."""

import functools
import logging
from collections.abc import Sequence

from headrace.actors.acting.own_seed import own_seed
from headrace.actors.league.league import League
from headrace.actors.league.opponents import Opponents
from headrace.actors.league.players import Played, opponents
from headrace.actors.league.several import OneOfSeveral, SeveralPolicies, Side
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.policies.shared_stepper import PolicyStepper
from headrace.launch.config.run_file import Run
from headrace.launch.results.loaded_run import Check, named_player

log = logging.getLogger(__name__)


def leagues(
    runs: Sequence[Run],
    views: Sequence[PolicyStepper],
    metrics: Sequence[SamplerMetrics],
    *,
    seed: int,
    check: Check,
) -> Sequence[League | None]:
    """Returns each policy's part of the league; None = no run asks for one."""
    if not any(run.league.share for run in runs):
        return [None] * len(runs)
    if len(runs) == 1:
        log.info("%s: its league has nobody else who learns", runs[0].run.name)
        return [None]
    played = [
        Played(run.model, view.spaces, run.actor) for run, view in zip(runs, views, strict=True)
    ]

    def met(learner: Run, other: int) -> Opponents:
        """Returns who plays in place of another policy while this one learns."""
        own = own_seed(seed, f"{learner.run.name} {other}")
        player = functools.partial(named_player, "league.others", seed=own, check=check)
        return opponents(learner.league, played[other], player, seed=own)

    sides = [
        Side(
            run.league,
            view.frame.agents,
            {
                other: met(run, other)
                for other in range(len(runs))
                if run.league.share and other != number
            },
            view.over,
        )
        for number, (run, view) in enumerate(zip(runs, views, strict=True))
    ]
    frame = views[0].frame
    all_policies = SeveralPolicies(sides, envs=frame.groups * frame.envs // frame.agents, seed=seed)
    return [
        League(
            view.frame,
            OneOfSeveral(all_policies, number),
            episodes=view.episodes,
            tell=told.game_ended,
        )
        for number, (view, told) in enumerate(zip(views, metrics, strict=True))
    ]
