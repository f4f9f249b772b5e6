"""Lets the newest weights of other policies play their agents while one is evaluated."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.actors.acting.own_seed import own_seed
from headrace.actors.acting.policy import Policy
from headrace.actors.evaluator import Seated
from headrace.actors.policies.seats import seated
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.launch.config.run_file import Run
from headrace.launch.results.loaded_run import (
    Check,
    seated_others,
    trained_policy,
    untrained_players,
)
from headrace.learner.weights import WeightsError

# For newer weights; then those play that are here. A broker that is gone must hold up nobody.
_PATIENCE_S: Final = 5.0
# What it says of itself to the broker of another policy: it evaluates, but not this one.
BESIDE: Final[Mapping[str, float]] = {"episodes": 0.0}


@dataclass(frozen=True, slots=True)
class Partner:
    """Plays as the run of another policy has learned to."""

    end: EvaluatorEnd
    policy: Policy

    async def renew(self) -> None:
        """Takes the newest weights; WeightsError where none have come yet."""
        end = self.end
        end.ask_for_blob()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while end.weights.fetching or not (end.weights.blob or self.policy.version >= 0):
                    end.news.clear()
                    await end.news.wait()
        blob = end.take_blob()
        if blob is not None:
            end.weights.acts_with(blob.announce.version, self.policy.load(blob))
        if self.policy.version < 0:
            raise WeightsError(f"no weights have come from {end.link.endpoint}, which play beside")


def company(
    run: Run, beside: Sequence[tuple[EvaluatorEnd, Run]], done: Sequence[Path], check: Check
) -> tuple[list[Partner], list[Seated]]:
    """Returns the policies of other runs that learn beside this one; and all who play beside it:
    these, those in the folders of `done`, and those that nobody trains."""
    if not beside and not done:
        return [], seated_others(run.env, run.evaluate, check)
    seed = run.evaluate.seed
    ended = [trained_policy(folder, seed, check) for folder in done]
    envs = [run.env, *(other.env for _, other in beside), *(env for env, _ in ended)]
    seats, untrained = seated(envs)
    partners = []
    for (end, other), seat in zip(beside, seats[1:], strict=False):
        end.open((seat.spaces.digest(), str(seat.spaces)))
        own = own_seed(seed, other.run.name)
        policy = Policy(other.model, seat.spaces, seed=own, precision="float32")
        partners.append(Partner(end, policy))
    policies = [*(partner.policy for partner in partners), *(policy for _, policy in ended)]
    players = [
        Seated(policy, seat.spaces, seat.agents)
        for policy, seat in zip(policies, seats[1:], strict=True)
    ]
    return partners, [*players, *untrained_players(untrained, seed, check)]
