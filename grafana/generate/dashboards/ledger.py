"""The ledger: generated = trained + refused, by reason + in flight, on every process."""

from grafana.generate.panels import ODD, ZERO, Board, Row, age, lines, number, stack

_SUM = (
    number(
        "Unaccounted, broker",
        "none",
        "Must be 0.",
        'headrace_broker_ledger_unaccounted{job="$job"}',
        colours=ZERO,
    ),
    number(
        "Unaccounted, samplers",
        "none",
        "Must be 0.",
        'headrace_samplers_ledger_unaccounted{job="$job"}',
        colours=ZERO,
    ),
    number(
        "Unaccounted, learners",
        "none",
        "Must be 0.",
        'sum(headrace_learner_ledger_unaccounted{job="$job"})',
        colours=ZERO,
    ),
    number(
        "Arrived",
        "locale",
        "Distinct unrolls, since the broker began.",
        'headrace_broker_received_total{job="$job"}',
    ),
    number(
        "Trained",
        "locale",
        "Since the broker began.",
        'headrace_broker_fragments_total{job="$job", outcome="trained"}',
    ),
    number(
        "Rolled back",
        "locale",
        "Trained, and undone by the return to an older checkpoint; since the broker began.",
        'headrace_broker_rolled_back_fragments_total{job="$job"}',
        colours=ODD,
    ),
)

_OUTCOMES = (
    stack(
        "What became of unrolls",
        "none",
        "In each interval, as the broker settled them.",
        {"{{outcome}}": 'increase(headrace_broker_fragments_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "What samplers were told",
        "none",
        "In each interval; the same with a beat's delay.",
        {
            "{{outcome}}": "increase(headrace_samplers_fragments_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
    stack(
        "What learners did",
        "none",
        "In each interval, with what was delivered.",
        {
            "{{outcome}}": "sum by (outcome) (increase(headrace_learner_fragments_total"
            '{job="$job"}[$__rate_interval]))'
        },
    ),
    stack(
        "Rejected by learners",
        "none",
        "In each interval, by what was wrong with the unroll.",
        {
            "{{reason}}": "sum by (reason) (increase(headrace_learner_rejected_fragments_total"
            '{job="$job"}[$__rate_interval]))'
        },
    ),
    lines(
        "Share not trained",
        "percentunit",
        "Of all that was settled in five minutes: stale only.",
        {"stale": 'job:headrace_broker_stale:ratio_rate5m{job="$job"}'},
    ),
    stack(
        "Who supplies what is trained",
        "percentunit",
        "Shares of the steps trained in a minute, by quarter of the groups of environments; 1"
        " supplied least. Equally fast ones supply a quarter each.",
        {"{{quarter}}": 'headrace_broker_trained_share{job="$job"}'},
    ),
    lines(
        "Delivered",
        "short",
        "To each learner, a second; copies left out.",
        {
            "{{instance}}": "rate(headrace_learner_delivered_fragments_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
    stack(
        "In flight",
        "none",
        "Not settled, by who has it. A sampler keeps a copy of each.",
        {
            "waiting at the broker": 'headrace_broker_queue_fragments{job="$job"}',
            "leased": 'headrace_broker_leased_fragments{job="$job"}',
        },
    ),
)

_FAULTS = (
    lines(
        "Time since start",
        "s",
        "Of each process that is scraped; back to 0 is a restart.",
        {"{{role}} {{instance}}": age('process_start_time_seconds{job="$job"}')},
    ),
    lines(
        "Restarts of samplers",
        "none",
        "By their node, in each interval.",
        {"{{instance}}": 'increase(headrace_node_restarts_total{job="$job"}[$__rate_interval])'},
        none="No node with a metrics port",
    ),
    lines(
        "Reconnects",
        "none",
        "In each interval.",
        {
            "samplers": "increase(headrace_samplers_reconnects_total"
            '{job="$job"}[$__rate_interval])',
            "learner {{instance}}": "increase(headrace_learner_reconnects_total"
            '{job="$job"}[$__rate_interval])',
        },
    ),
)

BOARD = Board(
    name="ledger",
    title="Ledger",
    words="Nothing disappears: generated = trained + refused, by reason + in flight.",
    rows=(Row("The sum", _SUM), Row("Outcomes", _OUTCOMES), Row("Last faults", _FAULTS)),
)
