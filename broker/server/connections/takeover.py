"""Decides which learner trains the run: a newcomer waits, is refused, or replaces a dead one.

    HELLO of another group ----> is the one that is here alive?
        no, its lease is over                            -> in
        no, its connection is closed and it missed two beats -> in
        not known yet                                    -> WAIT, it says HELLO again
        yes, it was heard a beat after the newcomer asked -> TAKEN
        whatever it is, with take_over                   -> in; the one that was here: TAKEN

All ranks of one learner say the same group, and are replaced together.
"""

import time
from collections.abc import Callable
from typing import Final

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.records import Session
from headrace.broker.protocol.messages import Hello, LearnerPong, Refusal
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import Peer, Roster

# Beats that a learner whose connection is closed must have missed, to count as dead.
_MISSED: Final = 2.0
# Newcomers remembered; those that stopped asking are forgotten first.
_MOST_ASKING: Final = 1024


class Takeover:
    """Decides which of two learners trains the run."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        replies: Replies,
        beat_s: float,
        pong: Callable[[], LearnerPong],
    ) -> None:
        self._ledger = ledger
        self._replies = replies
        self._roster = roster
        self._beat_s = beat_s
        self._pong = pong  # what a learner hears at every beat; an extra one does no harm
        self._asking: dict[int, float] = {}  # newcomer -> when it said its first HELLO
        self.trained_steps = 0  # as a learner's latest beat says

    def refusal(self, hello: Hello, *, published: int, now: float) -> tuple[Refusal, str] | None:
        """Returns why this learner may not join, or not yet, in words for its user."""
        if not hello.take_over:
            occupied = self._occupied(hello, now)
            if occupied is not None:
                return occupied
        self._asking.pop(hello.inc, None)
        return self._would_forget(hello, published)

    def replace_rivals(self, hello: Hello) -> list[tuple[Peer, str]]:
        """Removes the ranks of another learner, as this one joins; returns them and what to tell
        them. Their leases go back. With --take-over no attempt is counted, for nothing went wrong
        with them; else it is: what a learner died with may be why it died."""
        out = []
        for rival in self._rivals(hello):
            peer = self._roster.get(self._roster.route_of(rival.inc))
            if hello.take_over:
                self._ledger.learner_bye(rival.inc, final=False)
            self._roster.forget(rival.inc)
            if peer is not None:
                out.append(peer)
        newcomer = self._roster.get(self._roster.route_of(hello.inc))
        where = f" from {newcomer.address}" if newcomer is not None else ""
        words = (
            f"{sanitise.words(hello.name)}{where} trains this run now"
            f"{', by --take-over' if hello.take_over else ''}; what this learner does from now on"
            " is not used"
        )
        return [(peer, words) for peer in out]

    def _rivals(self, hello: Hello) -> list[Session]:
        leases = self._ledger.state.leases
        return leases.rivals(hello.inc, group=hello.group, rank=hello.rank)

    def _occupied(self, hello: Hello, now: float) -> tuple[Refusal, str] | None:
        alive = [rival for rival in self._rivals(hello) if not self._is_dead(rival, now)]
        if not alive:
            return None
        if hello.inc not in self._asking and len(self._asking) >= _MOST_ASKING:
            del self._asking[next(iter(self._asking))]
        asked = self._asking.setdefault(hello.inc, now)
        # A whole learner has rank 0; the rest of one is about to end.
        first = min(alive, key=lambda rival: rival.rank)
        # What was heard a beat later was not on its way already when it asked.
        heard = first.heard_at - asked > self._beat_s and self._reaches(first.inc)
        if first.rank == 0 and heard:
            del self._asking[hello.inc]
            return Refusal.TAKEN, (
                f"{self._words(first, now)} trains this run; end it first, or start this one with"
                " --take-over, which ends it"
            )
        return Refusal.WAIT, (
            f"{self._words(first, now)} is not known to be dead; it was heard"
            f" {now - first.heard_at:.1f} s ago, and loses its place after"
            f" {self._ledger.lease_s:g} s of silence"
        )

    def _is_dead(self, session: Session, now: float) -> bool:
        silent = now - session.heard_at
        if silent > self._ledger.lease_s:
            return True
        return silent > _MISSED * self._beat_s and not self._reaches(session.inc)

    def _reaches(self, inc: int) -> bool:
        """Tells whether its connection is open."""
        return self._replies.is_reachable(self._roster.route_of(inc), self._pong())

    def _words(self, session: Session, now: float) -> str:
        """Describes a session: its name, where it is, and since when."""
        peer = self._roster.get(self._roster.route_of(session.inc))
        name = f"{peer.name} from {peer.address}" if peer is not None else f"rank {session.rank}"
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - session.since)))
        return f"{name} (rank {session.rank} of {session.world}, here since {since})"

    def _would_forget(self, hello: Hello, published: int) -> tuple[Refusal, str] | None:
        """Refuses a learner that would replace what others trained with new weights, unasked."""
        if hello.fresh or hello.version > 0:
            return None
        if self._ledger.state.leases.session(hello.inc) is not None:
            return None  # it is here, and only says HELLO again
        if any(s.group == hello.group for s in self._ledger.state.leases.sessions.values()):
            return None  # its rank 0 was let in
        version = max(self._ledger.state.credit.version, published, self._roster.acted())
        if version <= 0:
            return None
        steps = f" ({self.trained_steps} steps trained)" if self.trained_steps else ""
        return Refusal.FORGETS, (
            f"this run is at version {version}{steps}, and this learner begins with new weights:"
            " all that was learned would be forgotten. Continue it with --resume and the folder"
            " that holds its checkpoints, or begin anew with --fresh"
        )
