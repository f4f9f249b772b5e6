"""The status of the run for those who watch it: what peers report, and what the broker counts."""

import time
from collections.abc import Sequence
from typing import Any, Final

from headrace.broker import sanitise
from headrace.broker.decimated_curve import DecimatedCurve
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.peer_errors import PeerErrors
from headrace.broker.protocol import hello_payload
from headrace.broker.release import release
from headrace.broker.sampler_figures import SamplerTotals
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.weight_messages import WeightMessages

# The status looks at every peer: it is made again after this many seconds at the soonest.
_EVERY_S: Final = 0.1
# Learners and evaluators that are shown.
_MOST_SHOWN: Final = 64
_MOST_LATE: Final = 20


class RunStatus:
    """Takes in what peers report, and puts the status together from that and the broker's parts."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        weight_messages: WeightMessages,
        *,
        inc: int,
        beat_s: float,
    ) -> None:
        self.sampler_totals = SamplerTotals()
        self.peer_errors = PeerErrors()
        self.explained: Sequence[str] = ()  # what holds the run back, in words; set by its owner
        self._inc = inc  # the broker's incarnation
        self._began = time.monotonic()  # when the broker did
        self._beat_s = beat_s
        self._ledger = ledger
        self._roster = roster
        self._weight_messages = weight_messages
        self._curve: DecimatedCurve[float] = DecimatedCurve()  # (steps trained on, mean return)
        self._packed = b""
        self._until = float("-inf")  # the packed one is fresh before

    def add_figures(self, peer: Peer, stats: dict[str, float]) -> None:
        """Takes in the figures that a peer sends with every beat."""
        stats = peer.stats = sanitise.numbers(stats)
        peer.skew_s = abs(time.time() - stats.get("clock", time.time()))
        if peer.role in ("actor", "node"):
            age_s = peer.heard_at - self._began
            self.sampler_totals.add(peer.inc, stats, here=len(self._roster), age_s=age_s)
        elif peer.role == "learner" and "mean_return" in stats and "trained_steps" in stats:
            self._curve.add(stats["trained_steps"], stats["mean_return"])

    def packed(self, now: float) -> bytes:
        """Returns the status packed for the wire, at most 0.1 s old."""
        if now >= self._until:
            self._packed, self._until = hello_payload.pack(self.status()), now + _EVERY_S
        return self._packed

    def status(self) -> dict[str, Any]:
        """Returns the status. Another thread may ask: every table is copied before it is walked."""
        ledger, roster, weight_messages = self._ledger, self._roster, self._weight_messages
        now, state, weights = time.monotonic(), ledger.state, weight_messages.fetch
        leased = len(state.leases)
        return {
            "run": roster.run,
            "inc": f"{self._inc:016x}",
            "release": release(),
            "clock": time.time(),
            **self.training(),
            "uptime_s": now - self._began,
            "beat_s": self._beat_s,
            "version": state.credit.version,
            "weights": weights.version,
            "behind_versions": roster.versions_behind(weights.version),
            "max_lag": state.credit.max_lag,
            "ahead": round(state.credit.ahead, 3),
            "batch_unrolls": state.batch,
            "queued": state.entries - leased,
            "queued_bytes": state.nbytes,
            "queue_limit_bytes": state.queue_bytes,
            "unread_bytes": weight_messages.unread,
            "leased": leased,
            "running": state.credit.running,
            "streams": state.credit.streams,
            "window": state.credit.window,
            "unroll_s": state.credit.durations.mean_s,
            "withdrawn": state.credit.withdrawn,
            "received": state.received,
            "duplicates": state.copies,
            "unaccounted": ledger.unaccounted(),
            "actors": {"behind": roster.behind(weights.version), **roster.sums()},
            "samplers": {
                name: self.sampler_totals.totals[name]
                for name in ("env_steps", "episodes", "generated")
            },
            "league": self.sampler_totals.league.shown(),
            "evaluators": self._figures_of("evaluator", now),
            "late": self._late(now),
            "troubles": self.peer_errors.shown(now),
            "curve": self._curve.points(),
            "explain": self.explained,
            "over": ledger.run_complete,
        }

    def training(self) -> dict[str, Any]:
        """Returns what the status tells of training, without a look at every peer."""
        outcomes = self._ledger.state.outcomes.copy()
        return {
            "outcomes": {outcome.name.lower(): n for outcome, n in outcomes.items()},
            "learners": self._figures_of("learner", time.monotonic()),
            "weights_bytes": self._weight_messages.propagation.nbytes,
        }

    def _late(self, now: float) -> list[dict[str, Any]]:
        late = [peer for peer in self._roster.everybody() if peer.is_late(self._beat_s, now)]
        return [
            {"role": peer.role, "name": peer.name, "silent_s": round(now - peer.heard_at, 3)}
            for peer in late[:_MOST_LATE]
        ]

    def _figures_of(self, role: str, now: float) -> list[dict[str, Any]]:
        return [
            {"name": peer.name, "silent_s": round(now - peer.heard_at, 3), **peer.stats}
            for peer in [
                # An evaluator of 0 episodes scores another broker's policy, beside this one.
                one
                for one in self._roster.with_role(role)
                if one.stats.get("episodes") != 0
            ][:_MOST_SHOWN]
        ]
