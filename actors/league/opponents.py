"""Keeps who may be met: weights of before, and others that the run names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import LeagueConfig
from headrace.actors.league.matchmaking import Candidate, Record, chances, rule
from headrace.broker.league_results import OPPONENTS, PAST
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.snapshots import Snapshots


@dataclass(slots=True, eq=False)
class Member:
    """Holds one of those who may be met."""

    player: PolicyLike
    opponent: str  # what it is called in results
    name: str = ""  # in league.others; "" = weights of before
    version: int = -1  # of such weights
    record: Record = field(default_factory=Record)

    @property
    def candidate(self) -> Candidate:
        """Returns what a rule is told of it."""
        return Candidate(self.name, self.version, self.record.games, self.record.share)


class Opponents:
    """Holds those who may be met, and chooses among them by a league's rule."""

    def __init__(
        self,
        config: LeagueConfig,
        *,
        snapshot: Callable[[Blob], PolicyLike],
        others: Mapping[str, PolicyLike],
    ) -> None:
        self._pick, self._rule = config.pick, rule(config.pick)
        self._snapshot = snapshot  # makes a player of weights, which it copies
        self._others = [
            Member(player, OPPONENTS[place], name)
            for place, (name, player) in enumerate(others.items(), 1)
        ]
        self._snapshots: Snapshots[Member] = Snapshots(every=config.every, keep=config.keep)

    def took(self, blob: Blob, *, earlier: bool) -> bool:
        """Hears of newer weights; keeps what they are now if it is time to, and says so. `earlier`:
        they are older ones that somebody else has kept."""
        version, kept = blob.announce.version, self._snapshots
        late = earlier and kept.lacks(version)
        if late or kept.due(version):
            member = Member(self._snapshot(blob), PAST, version=version)
            (kept.add_earlier if late else kept.add)(version, member)
            return True
        return False

    def draw(self, dice: np.random.Generator) -> Member | None:
        """Returns who is met next; None = there is nobody yet."""
        # The newest weights come last.
        pool = [*self._others, *self._snapshots.kept.values()]
        if not pool:
            return None
        likely = chances(self._pick, self._rule, [member.candidate for member in pool])
        return pool[int(dice.choice(len(pool), p=likely))]
