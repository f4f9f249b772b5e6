"""Seats others beside the policy while it learns.

In a share of an environment's episodes one side learns, each time another one, and members of the
league play all others. Their steps reach the unroll as dead ones, from which nobody learns.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.previous_step import Arrays, Rows
from headrace.actors.config import LeagueConfig
from headrace.actors.league.opponents import Member, Opponents
from headrace.actors.stepping.stepper import Answer, Frame
from headrace.broker.weights.blobs import Blob
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED

log = logging.getLogger(__name__)


class Match(NamedTuple):
    """Describes an episode to a policy that plays in it."""

    players: Sequence[Member | None] = ()  # by agent; None, or nobody named = the policy plays it
    judged: Sequence[int] = ()  # agents by whose return it is judged; () = not by the policy's
    opponents: Sequence[Member] = ()  # of whoever learns


ALL_LEARN: Final = Match()


class Draws(Protocol):
    """Draws who plays, and keeps who may be met."""

    def took(self, blob: Blob, *, earlier: bool) -> bool:
        """Hears of newer weights of the policy; says whether they are kept. `earlier`: they are
        older ones, and may come after newer ones."""

    def match(self, env: int, episode: float) -> Match:
        """Returns who plays in an episode that has begun; asked once for each."""


class SelfPlay:
    """Draws for a policy that plays all agents: one of these learns, somebody plays the others."""

    def __init__(
        self, config: LeagueConfig, opponents: Opponents, *, envs: int, agents: int, seed: int
    ) -> None:
        self._share, self._opponents, self._agents = config.share, opponents, agents
        self._dice = league_dice(seed)
        self._seat = [0] * envs  # of the agent that learns next to somebody

    def took(self, blob: Blob, *, earlier: bool) -> bool:
        return self._opponents.took(blob, earlier=earlier)

    def match(self, env: int, episode: float) -> Match:
        del episode
        member = self._opponents.draw(self._dice) if self._dice.random() < self._share else None
        if member is None:
            return ALL_LEARN
        self._seat[env] = seat = (self._seat[env] + 1) % self._agents
        players = [None if agent == seat else member for agent in range(self._agents)]
        return Match(players, (seat,), (member,))


def league_dice(seed: int) -> np.random.Generator:
    """Returns dice that fall in other ways than all others of this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[1])


class League:
    """Follows the episodes of a policy's agents, and plays for those who do not learn in them."""

    def __init__(
        self,
        frame: Frame,
        draws: Draws,
        *,
        episodes: NDArray[Any] | None = None,
        tell: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Follows what this frame shows. `episodes`: the number of each environment's, by
        environment; None = as the frame counts them."""
        # Versions of before that others have kept, until they are taken with the next newer ones:
        # they come by another way, and perhaps later.
        self.earlier: list[Blob] = []
        self._frame, self._draws = frame, draws
        self._tell = tell  # whom each game was with, and how it ended: won, drawn or lost
        columns = frame.groups * frame.envs
        envs = columns // frame.agents
        self._columns = np.arange(columns)
        self._hidden = np.zeros(columns, np.bool_)  # somebody else plays this column
        self._episodes = frame.begun[:: frame.turns] if episodes is None else episodes
        self._episode = np.full(envs, -1, self._episodes.dtype)  # of each environment, as it was
        self._matches = [ALL_LEARN] * envs
        self._paid = np.zeros(columns)  # in this episode
        self._ended = np.zeros(envs, np.bool_)  # an agent of it has ended, as at its true end

    def took(self, blob: Blob) -> None:
        """Keeps these weights, if it is time to."""
        told = [one for one in self.earlier if self._draws.took(one, earlier=True)]
        begun = [str(one.announce.version) for one in told]
        self.earlier.clear()
        if begun:
            log.info("the league begins with versions %s", ", ".join(begun))
        self._draws.took(blob, earlier=False)

    def act(
        self,
        rows: Rows,
        seen: Arrays,
        before: NDArray[np.float32] | None,
        actions: NDArray[Any],
        memory: NDArray[np.float32] | None,
    ) -> None:
        """Writes the actions of the others, and the memory after them."""
        columns = self._columns[rows]
        self._follow(columns)
        places: dict[Member, list[int]] = {}
        for place in np.flatnonzero(self._hidden[columns]).tolist():
            env, agent = divmod(int(columns[place]), self._frame.agents)
            member = self._matches[env].players[agent]
            assert member is not None
            places.setdefault(member, []).append(place)
        for member, at in places.items():
            player = member.player
            shown = {name: array[at] for name, array in seen.items()}
            kept = before[at] if before is not None and player.memory else None
            chosen, _, after = player.act(shown, kept)
            actions[at] = chosen
            if memory is not None and after is not None:
                memory[at] = after

    def hide(self, rows: Rows, answer: Answer) -> None:
        """Makes dead steps of those that others played."""
        reward, flags, metrics = answer
        theirs = self._hidden[rows]
        reward[theirs], flags[theirs] = 0.0, DEAD
        if metrics is not None:
            metrics[theirs] = np.nan

    def _follow(self, columns: NDArray[np.int64]) -> None:
        """Counts what the newest steps of these columns paid; where an episode has begun, the one
        before it is judged and the next one's players are drawn."""
        frame = self._frame
        self._paid[columns] += frame.reward[columns]
        ended = columns[frame.flags[columns] & (TERMINATED | TRUNCATED) != 0]
        self._ended[ended // frame.agents] = True
        envs = np.unique(columns // frame.agents)
        episodes = self._episodes[envs]
        began = episodes != self._episode[envs]
        self._episode[envs] = episodes
        for env, episode in zip(envs[began].tolist(), episodes[began].tolist(), strict=True):
            self._judge(env)
            self._seat(env, self._draws.match(env, episode))

    def _judge(self, env: int) -> None:
        """Records how the episode ended, if it is judged by this policy's return and has come to
        its end."""
        match, first = self._matches[env], env * self._frame.agents
        if match.judged and self._ended[env]:
            paid = float(self._paid[[first + agent for agent in match.judged]].sum())
            for member in match.opponents:
                member.record.add((np.sign(paid) + 1) / 2)
                self._tell(member.opponent, "won" if paid > 0 else "lost" if paid < 0 else "drawn")
        self._paid[first : first + self._frame.agents], self._ended[env] = 0.0, False

    def _seat(self, env: int, match: Match) -> None:
        self._matches[env] = match
        first = env * self._frame.agents
        seats = self._hidden[first : first + self._frame.agents]
        seats[:] = False
        for agent, member in enumerate(match.players):
            seats[agent] = member is not None
