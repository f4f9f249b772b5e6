"""Makes players of a league: policies as they were, and whom the run names."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import ActorConfig, LeagueConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.league.opponents import Opponents
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.spaces import Spaces


@dataclass(frozen=True, slots=True)
class Played:
    """Describes a policy in whose place others play."""

    model: ModelConfig
    spaces: Spaces
    actor: ActorConfig


def opponents(
    config: LeagueConfig, played: Played, player: Callable[[str, Spaces], PolicyLike], *, seed: int
) -> Opponents:
    """Returns who may be met in place of this policy. `player`: makes one of league.others."""

    def policy(seed: int) -> Policy:
        precision = played.actor.precision
        return Policy(played.model, played.spaces, seed=seed, precision=precision)

    def snapshot(blob: Blob) -> Policy:
        past = policy(seed + blob.announce.version + 1)  # their dice fall in other ways
        past.load(blob)
        return past

    others: dict[str, PolicyLike] = {}
    for name in config.others:
        others[name] = other = player(name, played.spaces)
        own = policy(seed)
        if (other.memory, other.previous) not in ((0, False), (own.memory, own.previous)):
            raise EnvError(
                f"league.others = {name!r}: its policy remembers {other.memory} numbers, this run's"
                f" {own.memory} (model.core, core_units, previous): they must be alike"
            )
    return Opponents(config, snapshot=snapshot, others=others)
