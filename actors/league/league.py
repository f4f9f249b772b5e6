"""Seats others beside the policy while it learns.

In a share of an environment's episodes one agent learns, each time another one, and one of the
league plays all others. Their steps reach the unroll as dead ones, from which nobody learns.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.previous_step import Arrays, Rows
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import LeagueConfig
from headrace.actors.league.matchmaking import Candidate, Record, chances, rule
from headrace.actors.stepping.stepper import Answer, Frame
from headrace.broker.league_results import OPPONENTS, PAST
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.snapshots import Snapshots
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED

log = logging.getLogger(__name__)

_NOBODY = 0  # in the place of a player: the policy itself plays


@dataclass(slots=True)
class _Member:
    player: PolicyLike
    number: int  # above 0, never given twice
    name: str = ""  # in league.others; "" = weights of before
    version: int = -1  # of such weights
    record: Record = field(default_factory=Record)

    @property
    def opponent(self) -> str:
        """Returns what it is called in results."""
        return OPPONENTS[self.number] if self.name else PAST

    @property
    def candidate(self) -> Candidate:
        """Returns what a rule is told of it."""
        return Candidate(self.name, self.version, self.record.games, self.record.share)


class League:
    """Draws who plays in each episode, and plays for them."""

    def __init__(
        self,
        config: LeagueConfig,
        frame: Frame,
        *,
        snapshot: Callable[[Blob], PolicyLike],
        others: Mapping[str, PolicyLike],
        seed: int,
        tell: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        # Versions from before the first that is taken, which others have kept; none are left then.
        self.earlier: list[Blob] = []
        self._config, self._frame = config, frame
        self._rule = rule(config.pick)
        self._snapshot = snapshot  # makes a player of weights, which it copies
        self._tell = tell  # whom each game was with, and how it ended: won, drawn or lost
        self._dice = np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[1])
        self._others = [
            _Member(player, number, name) for number, (name, player) in enumerate(others.items(), 1)
        ]
        self._snapshots: Snapshots[_Member] = Snapshots(every=config.every, keep=config.keep)
        self._next = len(self._others) + 1  # number of the next member
        # By number: all that are in the league, or still play.
        self._members = {member.number: member for member in self._others}
        columns = frame.groups * frame.envs
        envs = columns // frame.agents
        self._columns = np.arange(columns)
        self._who = np.zeros(columns, np.int64)  # plays this column: a member's number, or _NOBODY
        self._episode = np.full(envs, -1.0)  # of each environment, as the frame counts them
        self._seat = np.zeros(envs, np.int64)  # of the agent that learns, where others play
        self._paid = np.zeros(columns)  # in this episode
        self._ended = np.zeros(envs, np.bool_)  # an agent of it has ended, as at its true end

    def took(self, blob: Blob) -> None:
        """Keeps these weights, if it is time to."""
        begun = [str(one.announce.version) for one in self.earlier if self._keep(one)]
        self.earlier.clear()
        if begun:
            log.info("the league begins with versions %s", ", ".join(begun))
        self._keep(blob)

    def _keep(self, blob: Blob) -> bool:
        version = blob.announce.version
        if not self._snapshots.due(version):
            return False
        member = _Member(self._snapshot(blob), self._next, version=version)
        self._next += 1
        self._members[member.number] = member
        self._snapshots.add(version, member)
        playing = {member.number for member in self._pool()} | set(self._who.tolist())
        self._members = {n: one for n, one in self._members.items() if n in playing}
        return True

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
        who = self._who[columns]
        for number in set(who.tolist()) - {_NOBODY}:
            at = np.flatnonzero(who == number)
            shown = {name: array[at] for name, array in seen.items()}
            player = self._members[number].player
            kept = before[at] if before is not None and player.memory else None
            chosen, _, after = player.act(shown, kept)
            actions[at] = chosen
            if memory is not None and after is not None:
                memory[at] = after

    def hide(self, rows: Rows, answer: Answer) -> None:
        """Makes dead steps of those that others played."""
        reward, flags, metrics = answer
        theirs = self._who[rows] != _NOBODY
        reward[theirs], flags[theirs] = 0.0, DEAD
        if metrics is not None:
            metrics[theirs] = np.nan

    def _follow(self, columns: NDArray[np.int64]) -> None:
        """Counts what the newest steps of these columns paid; where an episode has begun, the one
        before it is judged and seats are drawn."""
        frame = self._frame
        self._paid[columns] += frame.reward[columns]
        ended = columns[frame.flags[columns] & (TERMINATED | TRUNCATED) != 0]
        self._ended[ended // frame.agents] = True
        envs = np.unique(columns // frame.agents)
        episodes = frame.begun[envs * frame.turns]
        began = episodes != self._episode[envs]
        self._episode[envs] = episodes
        for env in envs[began].tolist():
            self._judge(env)
            self._draw(env)

    def _judge(self, env: int) -> None:
        """Records how the episode ended for the agent that learned in it, if others played and it
        has come to its end."""
        first = env * self._frame.agents
        seats = slice(first, first + self._frame.agents)
        number = int(self._who[seats].max())
        if number != _NOBODY and self._ended[env]:
            paid = self._paid[first + self._seat[env]]
            member = self._members[number]
            member.record.add((np.sign(paid) + 1) / 2)
            self._tell(member.opponent, "won" if paid > 0 else "lost" if paid < 0 else "drawn")
        self._paid[seats], self._ended[env] = 0.0, False

    def _draw(self, env: int) -> None:
        agents, pool = self._frame.agents, self._pool()
        first = env * agents
        seats = self._who[first : first + agents]
        seats[:] = _NOBODY
        if pool and self._dice.random() < self._config.share:
            league = [member.candidate for member in pool]
            likely = chances(self._config.pick, self._rule, league)
            seats[:] = pool[int(self._dice.choice(len(pool), p=likely))].number
            self._seat[env] = (self._seat[env] + 1) % agents
            seats[self._seat[env]] = _NOBODY

    def _pool(self) -> list[_Member]:
        """Returns who may be met; the newest weights come last."""
        return [*self._others, *self._snapshots.kept.values()]
