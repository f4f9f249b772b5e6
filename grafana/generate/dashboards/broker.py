"""The broker: its queue, its traffic, and whom it turns away."""

from grafana.generate.panels import Board, Row, heatmap, lines, stack

_QUEUE = (
    lines(
        "Memory of the queue",
        "bytes",
        "All unrolls held, against [broker] queue_mb.",
        {
            "held": 'headrace_broker_queue_bytes{job="$job"}',
            "half here": 'headrace_broker_arriving_bytes{job="$job"}',
            "limit": 'headrace_broker_queue_limit_bytes{job="$job"}',
        },
    ),
    lines(
        "Not taken by peers",
        "bytes",
        "Sent, and not read yet: at most 0.75 MiB of a peer, and 64 MiB of bulk in all. High for"
        " long: slow lines, or peers that ask and do not read.",
        {"unread": 'headrace_broker_unread_bytes{job="$job"}'},
    ),
    lines(
        "Unrolls",
        "none",
        "Waiting and leased, beside what one version takes.",
        {
            "waiting": 'headrace_broker_queue_fragments{job="$job"}',
            "leased": 'headrace_broker_leased_fragments{job="$job"}',
            "one version": 'headrace_broker_batch_fragments{job="$job"}',
        },
    ),
    lines(
        "Credit",
        "none",
        "Unrolls that samplers may be at (granted), and grants that are possible now (budget)."
        " A budget above 0 for long means that there are too few samplers.",
        {
            "granted": 'headrace_broker_credit_granted_fragments{job="$job"}',
            "budget": 'headrace_broker_credit_budget_fragments{job="$job"}',
        },
        low=None,
    ),
    heatmap("Age", "s", "From arrival to settled.", "headrace_broker_fragment_age_seconds_bucket"),
    lines(
        "Oldest and typical age",
        "s",
        "Of what is held now, and of what was settled lately.",
        {
            "oldest held": 'headrace_broker_oldest_fragment_age_seconds{job="$job"}',
            "median settled": 'job:headrace_broker_fragment_age_seconds:p50{job="$job"}',
            "95th percentile settled": 'job:headrace_broker_fragment_age_seconds:p95{job="$job"}',
        },
    ),
    lines(
        "Sampling ahead",
        "none",
        "Unrolls granted, waiting or leased, in batches. Pacing holds it to max_lag + 1.",
        {
            "ahead": 'headrace_broker_ahead_batches{job="$job"}',
            "bound": 'headrace_broker_max_lag_versions{job="$job"} + 1',
        },
    ),
    heatmap(
        "Lag",
        "none",
        "Versions between acting and dispatch, by unroll: its age.",
        "headrace_broker_fragment_lag_versions_bucket",
    ),
    lines(
        "Arrivals a second",
        "short",
        "Distinct unrolls; copies are not counted.",
        {"unrolls": 'rate(headrace_broker_received_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "Outcomes a second",
        "short",
        "What became of unrolls.",
        {"{{outcome}}": 'rate(headrace_broker_fragments_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Redeliveries",
        "none",
        "Leases that ended without an answer, in each interval.",
        {
            "redelivered": "increase(headrace_broker_redeliveries_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
)

_TRAFFIC = (
    lines(
        "Bytes a second",
        "Bps",
        "By direction, and those that were unrolls.",
        {
            "{{dir}}": 'rate(headrace_broker_bytes_total{job="$job"}[$__rate_interval])',
            "unrolls": 'rate(headrace_broker_fragment_bytes_total{job="$job"}[$__rate_interval])',
        },
    ),
    lines(
        "Messages a second",
        "short",
        "By direction and type; those that do not come are left out.",
        {
            "{{dir}} {{type}}": "rate(headrace_broker_messages_total"
            '{job="$job"}[$__rate_interval]) > 0'
        },
    ),
    heatmap(
        "Message size", "bytes", "Of messages that came in.", "headrace_broker_message_bytes_bucket"
    ),
    heatmap(
        "Event loop",
        "s",
        "How late it woke up. Above a tenth of a second the broker is short of a core.",
        "headrace_broker_loop_lag_seconds_bucket",
    ),
    lines(
        "Full peers",
        "none",
        "Sends for which a peer had no room, in each interval.",
        {"sends": 'increase(headrace_broker_peer_full_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Clocks",
        "s",
        "The largest difference between a peer's clock and the broker's.",
        {"skew": 'headrace_broker_clock_skew_seconds{job="$job"}'},
    ),
)

_PEERS = (
    lines(
        "Streams",
        "none",
        "Groups of environments, and the places they share: beyond, some wait.",
        {
            "streams": 'headrace_broker_streams{job="$job"}',
            "places": '(headrace_broker_max_lag_versions{job="$job"} + 1)'
            ' * headrace_broker_batch_fragments{job="$job"}',
        },
    ),
    lines(
        "Credit in vain",
        "none",
        "In each interval: given back unused, because others waited; and streams whose unroll was"
        " waited for no longer.",
        {
            "given back": "increase(headrace_broker_credit_withdrawn_fragments_total"
            '{job="$job"}[$__rate_interval])',
            "overdue": "increase(headrace_broker_overdue_streams_total"
            '{job="$job"}[$__rate_interval])',
        },
    ),
    lines(
        "Sessions",
        "none",
        "Live peers by role.",
        {"{{role}}": 'headrace_broker_sessions{job="$job"}'},
    ),
    lines(
        "Late peers",
        "locale",
        "Not heard for more than two and a half beats.",
        {"{{role}}": 'headrace_broker_late_peers{job="$job"}'},
    ),
    lines(
        "Moved sessions",
        "none",
        "Peers that went on from another connection, in each interval.",
        {"moved": 'increase(headrace_broker_moved_sessions_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "Handshakes",
        "none",
        "With keys only: let in, or why not, in each interval.",
        {"{{outcome}}": 'increase(headrace_broker_handshakes_total{job="$job"}[$__rate_interval])'},
        none="A run without keys",
    ),
    stack(
        "Refused peers",
        "none",
        "In each interval, by what did not fit.",
        {"{{reason}}": 'increase(headrace_broker_refusals_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "Messages not taken",
        "none",
        "In each interval, by reason.",
        {
            "{{reason}}": "increase(headrace_broker_protocol_errors_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
    stack(
        "Troubles",
        "none",
        "Errors that peers told of, in each interval.",
        {"{{role}}": 'increase(headrace_broker_troubles_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Lines spared",
        "none",
        "Repeated complaints that did not go into the log, in each interval.",
        {"lines": 'increase(headrace_broker_unsaid_lines_total{job="$job"}[$__rate_interval])'},
    ),
)

BOARD = Board(
    name="broker",
    title="Broker",
    words="What the broker holds, what goes through it, and whom it turns away.",
    rows=(Row("Queue", _QUEUE), Row("Traffic", _TRAFFIC), Row("Peers", _PEERS)),
)
