"""Declares every broker metric, once. They are read at a scrape, so counting is free."""

import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.broker.histograms import histogram, settled_sum
from headrace.broker.protocol.messages import TYPES, Outcome
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import ROLES
from headrace.broker.server.sampler_metrics import summed
from headrace.broker.server.server import Server


class BrokerMetrics(Collector):
    """Reads the server's numbers at every scrape."""

    def __init__(self, registry: CollectorRegistry, server: Server) -> None:
        self._server = server
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield from self._traffic(server.counters)
        yield from self._ledger(server)
        yield from self._peers(server)
        yield from self._weights(server)
        yield from summed(server.run_status.sampler_totals, server.roster.say_for_samplers())

    def _traffic(self, counters: Counters) -> Iterator[Metric]:
        messages = CounterMetricFamily(
            "headrace_broker_messages", "Messages by direction and type", labels=["dir", "type"]
        )
        for kind in TYPES:
            for way in ("in", "out"):
                name = kind.__name__.lower()
                messages.add_metric([way, name], counters.messages[way, kind])
        yield messages
        yield _counter("headrace_broker_bytes", "Bytes by direction", "dir", counters.bytes)
        yield CounterMetricFamily(
            "headrace_broker_unsaid_lines",
            "Lines that the log was spared",
            value=counters.spared_lines,
        )
        yield CounterMetricFamily(
            "headrace_broker_fragment_bytes",
            "Bytes of unrolls that came in",
            value=counters.unroll_bytes,
        )
        yield _counter(
            "headrace_broker_protocol_errors", "Messages not taken", "reason", counters.dropped
        )
        yield _counter("headrace_broker_refusals", "Peers refused", "reason", counters.refused)
        yield histogram(
            "headrace_broker_fragment_lag_versions",
            "Age: versions between an unroll's first step and its dispatch",
            counters.lags,
        )
        yield CounterMetricFamily(
            "headrace_broker_peer_full", "Sends a peer had no room for", value=counters.peer_full
        )
        yield histogram("headrace_broker_message_bytes", "Of messages that came in", counters.sizes)
        yield histogram(
            "headrace_broker_loop_lag_seconds", "How late the event loop woke up", counters.loop_lag
        )

    def _ledger(self, server: Server) -> Iterator[Metric]:
        state, ledger = server.ledger.state, server.ledger
        outcomes = Counter({outcome.name.lower(): state.outcomes[outcome] for outcome in Outcome})
        outcomes["duplicate"] = state.copies
        yield _counter("headrace_broker_fragments", "Unrolls by outcome", "outcome", outcomes)
        for name, words, value in (
            ("received", "Distinct unrolls that arrived", state.received),
            ("redeliveries", "Leases that ended without an answer", state.redelivered),
            ("moved_sessions", "Peers that went on from another connection", server.joining.moved),
            ("credit_withdrawn_fragments", "Credits given back unused", state.credit.withdrawn),
            (
                "overdue_streams",
                "Streams whose unroll was waited for no longer",
                state.credit.overdue,
            ),
            (
                "rolled_back_fragments",
                "Trained, undone by an older checkpoint",
                ledger.versions.rolled_back,
            ),
        ):
            yield CounterMetricFamily(f"headrace_broker_{name}", words, value=value)
        leased = len(state.leases)
        for name, words, number in (
            ("queue_fragments", "Unrolls waiting", state.entries - leased),
            ("leased_fragments", "Unrolls at learners", leased),
            ("queue_bytes", "Bytes of all unrolls held", state.nbytes),
            (
                "arriving_bytes",
                "Bytes kept for unrolls that come in pieces",
                server.bulk_arrivals.nbytes,
            ),
            ("queue_limit_bytes", "Most bytes that may be held", state.queue_bytes),
            ("unread_bytes", "Sent, and not yet taken by peers", server.weights.unread),
            ("oldest_fragment_age_seconds", "Age of the unroll held longest", state.oldest_s()),
            ("credit_granted_fragments", "Granted and not arrived", state.credit.running),
            ("credit_budget_fragments", "Grants possible now", state.credit.budget()),
            ("streams", "That share the window; if more, some wait", state.credit.streams),
            ("batch_fragments", "Unrolls of an optimiser step, by the run", state.batch),
            ("ahead_batches", "Granted, waiting or leased: <= max_lag + 1", state.credit.ahead),
            ("max_lag_versions", "pacing.max_lag, by the run", state.credit.max_lag),
            ("version", "The learner's version", state.credit.version),
            ("over", "1 = the learner said that the run is complete", int(ledger.run_complete)),
            (
                "ledger_unaccounted",
                "Unrolls lost by our own counting",
                settled_sum(ledger.unaccounted),
            ),
        ):
            yield GaugeMetricFamily(f"headrace_broker_{name}", words, value=float(number))
        shares = GaugeMetricFamily(
            "headrace_broker_trained_share",
            "Of the steps trained in up to a minute, by quarter of the streams; 1 supplied least",
            labels=["quarter"],
        )
        for at, share in enumerate(server.trained_shares.quarters):
            shares.add_metric([str(at + 1)], share)
        yield shares
        yield histogram(
            "headrace_broker_fragment_age_seconds", "From arriving to how it ended", state.ages
        )

    def _peers(self, server: Server) -> Iterator[Metric]:
        now, beat_s = time.monotonic(), server.config.beat_s
        sessions = GaugeMetricFamily("headrace_broker_sessions", "Live peers", labels=["role"])
        late = GaugeMetricFamily(
            "headrace_broker_late_peers", "Peers that missed two beats", labels=["role"]
        )
        for role in ROLES:
            peers = server.roster.with_role(role)
            sessions.add_metric([role], len(peers))
            late.add_metric([role], sum(1 for peer in peers if peer.is_late(beat_s, now)))
        yield from (sessions, late)
        totals = server.run_status.peer_errors.totals
        told = Counter({role: totals[role] for role in ROLES if role != "watcher"})
        yield _counter("headrace_broker_troubles", "Errors that peers reported", "role", told)
        skews = [peer.skew_s for peer in server.roster.everybody()]
        yield GaugeMetricFamily(
            "headrace_broker_clock_skew_seconds",
            "Largest difference of a peer's clock from ours",
            value=max(skews, default=0.0),
        )
        if (gate := server.gate) is not None:
            shaken = Counter({"accepted": gate.accepted, **gate.refused})
            yield _counter("headrace_broker_handshakes", "By outcome", "outcome", shaken)

    def _weights(self, server: Server) -> Iterator[Metric]:
        spread, weights, roster = server.weights.propagation, server.weights.fetch, server.roster
        yield CounterMetricFamily(
            "headrace_broker_weights_published",
            "Versions whole and verified here",
            value=spread.versions_published,
        )
        yield histogram(
            "headrace_broker_weights_ready_seconds",
            "From here to a sampler acting with them",
            spread.ready,
        )
        for name, words, number in (
            ("version", "Newest weights whole and verified", weights.version),
            ("lagging_actors", "Samplers not acting with them", roster.behind(weights.version)),
            (
                "behind_versions",
                "Newest weights, less the oldest acted with",
                roster.versions_behind(weights.version),
            ),
            ("refused_chunks", "Chunks with a wrong hash", weights.refused),
            ("bytes", "Of the newest", spread.nbytes),
            ("published_timestamp_seconds", "When the newest were whole", spread.published_at),
        ):
            yield GaugeMetricFamily(f"headrace_broker_weights_{name}", words, value=float(number))


def _counter(name: str, words: str, label: str, values: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
