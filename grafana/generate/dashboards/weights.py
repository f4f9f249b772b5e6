"""Weights: from the learner's step to the samplers that act with it."""

from grafana.generate.panels import Board, Row, age, heatmap, lines

_NO_NODE = "No node with a metrics port"

_WAY = (
    lines(
        "Versions",
        "none",
        "Trained, whole at the broker, and acted with. The lines should rise together.",
        {
            "learner": 'headrace_broker_version{job="$job"}',
            "broker": 'headrace_broker_weights_version{job="$job"}',
            "evaluator": 'max(headrace_evaluator_version{job="$job"})',
            "{{instance}}": 'headrace_actor_weights_version{job="$job"}',
            "node {{instance}}": 'headrace_node_weights_version{job="$job"}',
        },
        width=16,
        low=None,
    ),
    heatmap(
        "Ready",
        "s",
        "From whole at the broker to a sampler that proved to act with it.",
        "headrace_broker_weights_ready_seconds_bucket",
    ),
    lines(
        "Behind",
        "none",
        "Versions between the newest and the oldest that a sampler acts with.",
        {
            "behind": 'headrace_broker_weights_behind_versions{job="$job"}',
            "the run's bound on lag": 'headrace_broker_max_lag_versions{job="$job"}',
        },
    ),
    lines(
        "Samplers not up to date",
        "none",
        "They do not act with the newest version yet.",
        {"samplers": 'headrace_broker_weights_lagging_actors{job="$job"}'},
    ),
    lines(
        "Age of what a sampler acts with",
        "s",
        "Samplers with a metrics port of their own.",
        {"{{instance}}": age('headrace_actor_weights_timestamp_seconds{job="$job"}')},
        none="No sampler with a metrics port",
    ),
)

_TRAFFIC = (
    lines(
        "Published a second",
        "short",
        "Versions that came whole to the broker.",
        {"versions": 'rate(headrace_broker_weights_published_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Since the last one",
        "s",
        "Grows without end when the learner stands still.",
        {"age": age('headrace_broker_weights_published_timestamp_seconds{job="$job"}')},
    ),
    lines(
        "One version",
        "bytes",
        "Its size: what every node fetches each time.",
        {"bytes": 'headrace_broker_weights_bytes{job="$job"}'},
    ),
    lines(
        "Fetched by nodes",
        "Bps",
        "Once a node, whatever the number of its samplers.",
        {"{{instance}}": 'rate(headrace_node_weights_bytes_total{job="$job"}[$__rate_interval])'},
        none=_NO_NODE,
    ),
    lines(
        "Fetches by nodes a second",
        "short",
        "Versions; fewer than published when they skip some.",
        {"{{instance}}": 'rate(headrace_node_weights_fetches_total{job="$job"}[$__rate_interval])'},
        none=_NO_NODE,
    ),
    lines(
        "Refused chunks",
        "none",
        "With a wrong hash, in each interval: a broken network card.",
        {"chunks": 'delta(headrace_broker_weights_refused_chunks{job="$job"}[$__rate_interval])'},
    ),
)

BOARD = Board(
    name="weights",
    title="Weights",
    words="How fast new weights reach those who act.",
    rows=(Row("From the learner to the samplers", _WAY), Row("Traffic", _TRAFFIC)),
)
