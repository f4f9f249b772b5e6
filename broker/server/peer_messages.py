"""The messages of peers about themselves: beats with figures, errors, farewells."""

import logging
import time
from collections.abc import Sequence

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import MAX_ENTRIES, Buffer, Bye
from headrace.broker.server.connections.rate_limits import RateLimits, cost_in_messages
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.connections.takeover import Takeover
from headrace.broker.server.status import RunStatus
from headrace.broker.server.weight_messages import WeightMessages


class PeerMessages:
    """Answers beats, and lets peers leave. One method for each message."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        limits: RateLimits,
        weights: WeightMessages,
        run_status: RunStatus,
        takeover: Takeover,
        *,
        inc: int,
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._limits = limits
        self._weights = weights
        self._replies = weights.replies
        self._peer_log = weights.peer_log
        self._run_status = run_status
        self._takeover = takeover
        self._inc = inc  # of the broker

    def ping(self, peer: Peer, message: messages.Ping, _: Sequence[Buffer]) -> None:
        if not peer.spaces and peer.role != "node":
            if peer.role == "actor":  # its HELLO with them got lost
                self._replies.send(peer.route, messages.Resync(self._inc))
            return
        self._take_figures(peer, message.stats)
        actor = peer.role == "actor"
        lost = self._ledger.ping(peer.inc, message.unacked, message.version) if actor else ()
        self._limits.charge(peer.budget, messages=cost_in_messages(message.unacked))
        version = self._ledger.state.credit.version
        own = isinstance(peer.route, bytes)
        if own or lost or not self._ledger.state.actors[peer.inc].streams:
            self._replies.send(peer.route, messages.Pong(self._inc, version, lost[:MAX_ENTRIES]))
        # Else it hears of its credit after every beat; and its relay announces weights.
        blob = self._weights.blob
        if own and peer.acting != self._weights.fetch.version and blob is not None:
            self._replies.send(peer.route, blob.announce)  # an announcement got lost
        if self._ledger.run_complete:
            self._replies.send(peer.route, Bye(self._inc, True, "the learner reached its goal"))

    def learner_ping(self, peer: Peer, message: messages.LearnerPing, _: Sequence[Buffer]) -> None:
        self._take_figures(peer, message.stats)
        self._takeover.trained_steps = int(peer.stats.get("trained_steps", 0))
        self._ledger.redeliver_lost(peer.inc, message.held, message.max_tag)
        self._ledger.learner_heard(
            peer.inc, peer.heard_at, version=message.version, want=message.want, share=message.share
        )
        self._weights.ask_again(peer)
        self._replies.send(peer.route, self._weights.pong())

    def _take_figures(self, peer: Peer, stats: dict[str, float]) -> None:
        self._replies.beat(peer)
        if stats:  # behind a node they come with the node's
            self._run_status.add_figures(peer, stats)

    def bye(self, peer: Peer, message: Bye, _: Sequence[Buffer]) -> None:
        last = peer.role != "actor" or len(message.abandoned) < MAX_ENTRIES
        self._limits.charge(peer.budget, messages=cost_in_messages(message.abandoned))
        if peer.role == "actor":
            self._ledger.actor_bye(peer.inc, message.abandoned, last=last)
        elif peer.role == "learner" and self._ledger.learner_bye(peer.inc, final=message.final):
            self._end_run(message)
        if last:  # else the next BYE names the rest
            text = sanitise.words(message.text)
            self._peer_log.log("%s %s leaves: %s", peer.role, peer.name, text, level=logging.INFO)
            self._roster.forget(peer.inc)

    def _end_run(self, bye: Bye) -> None:
        """Tells all players that the run is over, if this farewell says so."""
        text, blob = sanitise.words(bye.text), self._weights.blob
        for player in self._roster.players() if bye.final else ():
            if player.role == "evaluator" and blob is not None:
                self._replies.send(player.route, blob.announce)  # they evaluate the last ones
            self._replies.send(player.route, Bye(self._inc, True, text))

    def trouble(self, peer: Peer, message: messages.Trouble, _: Sequence[Buffer]) -> None:
        """Keeps an error that a peer reports; at INFO, so `headrace train` does not repeat it."""
        errors = self._run_status.peer_errors
        if errors.add(peer.role, peer.name, message.text, message.count, peer.heard_at):
            text = sanitise.words(message.text, 2000)
            self._peer_log.log("%s %s: %s", peer.role, peer.name, text, level=logging.INFO)

    def watch(self, peer: Peer, _message: messages.Watch, _: Sequence[Buffer]) -> None:
        packed = self._run_status.packed(time.monotonic())
        self._replies.send(peer.route, messages.Status(), packed)
