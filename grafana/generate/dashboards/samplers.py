"""Sampling: how fast, and what it waits for."""

from grafana.generate.panels import Board, Row, age, heatmap, lines, stack

_NO_PORT = "No sampler with a metrics port"

_ALL = (
    lines(
        "Agent steps a second",
        "short",
        "Of all samplers; dead steps after a reset left out.",
        {"steps": 'rate(headrace_samplers_env_steps_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Episodes a second",
        "short",
        "Episodes that ended, terminated or truncated.",
        {"episodes": 'rate(headrace_samplers_episodes_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Unrolls a second",
        "short",
        "Finished by samplers, and acknowledged to them. The two lines lie on each other.",
        {
            "generated": "rate(headrace_samplers_generated_fragments_total"
            '{job="$job"}[$__rate_interval])',
            "acknowledged": "sum(rate(headrace_samplers_fragments_total"
            '{job="$job"}[$__rate_interval]))',
        },
    ),
    stack(
        "Waits",
        "none",
        "Samplers that wait at a moment, by what for: credit = the learner sets the pace; weights ="
        " they are late; env = the environments set it; gather = rows for one call of the network.",
        {"{{phase}}": 'rate(headrace_samplers_wait_seconds_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "Work",
        "none",
        "Cores at work at a moment: in environments and in the network.",
        {
            "environments": "rate(headrace_samplers_env_seconds_total"
            '{job="$job"}[$__rate_interval])',
            "network": "rate(headrace_samplers_inference_seconds_total"
            '{job="$job"}[$__rate_interval])',
        },
    ),
    heatmap(
        "Environment step",
        "s",
        "Seconds of one step, a mean for each unroll.",
        "headrace_samplers_env_step_seconds_bucket",
    ),
    lines(
        "Rows of a network call",
        "none",
        "Observations for which the network is called at once. More is cheaper by the row.",
        {
            "rows": 'rate(headrace_samplers_inference_rows_total{job="$job"}[$__rate_interval])'
            ' / rate(headrace_samplers_inference_calls_total{job="$job"}[$__rate_interval])'
        },
    ),
    lines(
        "Unroll bytes a second",
        "Bps",
        "Before (raw) and after (wire) compression.",
        {"{{stage}}": 'rate(headrace_samplers_fragment_bytes_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Compression",
        "none",
        "Raw bytes for each byte on the wire; 1 = nothing is compressed.",
        {"ratio": 'job:headrace_samplers_fragment_bytes:ratio_rate5m{job="$job"}'},
    ),
)

_FAULTS = (
    heatmap(
        "Sent to acknowledged",
        "s",
        "From sending an unroll to the word that an optimiser step used it.",
        "headrace_samplers_ack_seconds_bucket",
    ),
    lines(
        "Not acknowledged",
        "none",
        "Unrolls that samplers keep, to send again if need be. Bounded by credit.",
        {"unrolls": 'headrace_samplers_unacked_fragments{job="$job"}'},
    ),
    stack(
        "Environment failures",
        "none",
        "Environments that were restarted in each interval, by where they failed.",
        {
            "{{where}}": "increase(headrace_samplers_env_failures_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
    stack(
        "Games of a league",
        "none",
        "Games of the policy with one of the league that ended in each interval, by how for it.",
        {
            "{{outcome}}": "sum by (outcome) (increase(headrace_samplers_league_games_total"
            '{job="$job"}[$__rate_interval]))'
        },
        none="The run has no league: league.share is 0.",
    ),
    lines(
        "Ratings above a league",
        "none",
        "Elo rating of the policy above each opponent by its newer games: past = its weights of"
        " before, other_1 = the first of league.others. 0 = as strong; 400 = ten points of eleven.",
        {"{{opponent}}": 'headrace_samplers_league_rating{job="$job", bound="rating"}'},
        low=None,
        none="The run has no league: league.share is 0.",
    ),
    lines(
        "Unrecorded steps",
        "none",
        "Agent steps in each interval that no unroll holds: another policy learned from them, and"
        " this one might not begin an unroll, as its learner is slower.",
        {
            "steps": "increase(headrace_samplers_unrecorded_steps_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
    lines(
        "Reconnects",
        "none",
        "Connections that samplers made anew in each interval.",
        {
            "reconnects": "increase(headrace_samplers_reconnects_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
)

_SINGLE = (
    lines(
        "Agent steps a second, each",
        "short",
        "A slow one is a slow machine or a slow environment.",
        {"{{instance}}": 'rate(headrace_actor_env_steps_total{job="$job"}[$__rate_interval])'},
        none=_NO_PORT,
    ),
    lines(
        "Waits, each",
        "percentunit",
        "Share of the time, by what for; groups wait side by side.",
        {
            "{{instance}} {{phase}}": "rate(headrace_actor_wait_seconds_total"
            '{job="$job"}[$__rate_interval])'
        },
        none=_NO_PORT,
    ),
    lines(
        "In environments and network, each",
        "none",
        "Cores at work.",
        {
            "{{instance}} environments": "rate(headrace_actor_env_seconds_total"
            '{job="$job"}[$__rate_interval])',
            "{{instance}} network": "rate(headrace_actor_inference_seconds_total"
            '{job="$job"}[$__rate_interval])',
        },
        none=_NO_PORT,
    ),
    lines(
        "Since the last unroll and acknowledgement",
        "s",
        "Both grow without end when a sampler hangs; the second alone when the learner does.",
        {
            "{{instance}} unroll": age(
                'headrace_actor_last_fragment_timestamp_seconds{job="$job"}'
            ),
            "{{instance}} acknowledged": age(
                'headrace_actor_last_ack_timestamp_seconds{job="$job"}'
            ),
        },
        none=_NO_PORT,
    ),
    lines(
        "Sent to acknowledged, each",
        "s",
        "95th percentile.",
        {
            "{{instance}}": "histogram_quantile(0.95,"
            ' rate(headrace_actor_ack_seconds_bucket{job="$job"}[$__rate_interval]))'
        },
        none=_NO_PORT,
    ),
    lines(
        "Environment step, each",
        "s",
        "95th percentile of the unrolls' means.",
        {
            "{{instance}}": "histogram_quantile(0.95,"
            ' rate(headrace_actor_env_step_seconds_bucket{job="$job"}[$__rate_interval]))'
        },
        none=_NO_PORT,
    ),
    lines(
        "Not acknowledged, each",
        "none",
        "Unrolls that it keeps.",
        {"{{instance}}": 'headrace_actor_unacked_fragments{job="$job"}'},
        none=_NO_PORT,
    ),
    lines(
        "Environment failures, each",
        "none",
        "In each interval, by where.",
        {
            "{{instance}} {{where}}": "increase(headrace_actor_env_failures_total"
            '{job="$job"}[$__rate_interval])'
        },
        none=_NO_PORT,
    ),
    lines(
        "Reconnects, each",
        "none",
        "In each interval.",
        {"{{instance}}": 'increase(headrace_actor_reconnects_total{job="$job"}[$__rate_interval])'},
        none=_NO_PORT,
    ),
)

BOARD = Board(
    name="samplers",
    title="Samplers",
    words="How fast the samplers are, what they wait for, and what fails in them.",
    rows=(
        Row("All samplers, as they tell the broker", _ALL),
        Row("Acknowledgements and faults", _FAULTS),
        Row("Samplers with a metrics port of their own", _SINGLE),
    ),
)
