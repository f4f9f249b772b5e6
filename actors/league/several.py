"""Draws who learns, and whom it meets, where several policies share environments."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.actors.config import LeagueConfig
from headrace.actors.league.league import ALL_LEARN, Match, league_dice
from headrace.actors.league.opponents import Member, Opponents
from headrace.broker.weights.blobs import Blob


class Side(NamedTuple):
    """Describes one of the policies."""

    config: LeagueConfig
    agents: int  # that it plays in each environment
    # By the number of another policy: who plays for that one while this one learns.
    opponents: Mapping[int, Opponents]
    over: Callable[[], object]  # whether its run is: it learns no more


class SeveralPolicies:
    """Draws once for all of them: in a policy's share of the episodes that are its turn, it learns
    and members of its league play for all others."""

    def __init__(self, sides: Sequence[Side], *, envs: int, seed: int) -> None:
        self.sides = sides
        self._dice = league_dice(seed)
        self._turn = [0] * envs  # the policy whose turn it is to learn
        self._episode = [-1.0] * envs  # that was drawn for
        self._drawn: list[tuple[int, Mapping[int, Member]]] = [(0, {})] * envs

    def drawn(self, env: int, episode: float) -> tuple[int, Mapping[int, Member]]:
        """Returns which policy's turn it is in an episode, and who plays for others; whichever
        policy asks first has it drawn."""
        if episode != self._episode[env]:
            self._episode[env], self._drawn[env] = episode, self._draw(env)
        return self._drawn[env]

    def _draw(self, env: int) -> tuple[int, Mapping[int, Member]]:
        count = len(self.sides)
        following = [(self._turn[env] + step) % count for step in range(1, count + 1)]
        turn = next((one for one in following if not self.sides[one].over()), following[0])
        self._turn[env], side = turn, self.sides[turn]
        if self._dice.random() >= side.config.share:
            return turn, {}
        met = {number: them.draw(self._dice) for number, them in side.opponents.items()}
        return turn, {number: member for number, member in met.items() if member is not None}


class OneOfSeveral:
    """Tells one of these policies who plays."""

    def __init__(self, all_policies: SeveralPolicies, number: int) -> None:
        self._all, self._number = all_policies, number

    def took(self, blob: Blob, *, earlier: bool) -> bool:
        """Lets all others keep what this policy is."""
        sides = self._all.sides
        pools = [one.opponents[self._number] for one in sides if self._number in one.opponents]
        kept = [pool.took(blob, earlier=earlier) for pool in pools]
        return any(kept)

    def match(self, env: int, episode: float) -> Match:
        turn, met = self._all.drawn(env, episode)
        if not met:
            return ALL_LEARN
        agents = self._all.sides[self._number].agents
        if turn == self._number:
            return Match(judged=range(agents), opponents=[*met.values()])
        return Match([met.get(self._number)] * agents)
