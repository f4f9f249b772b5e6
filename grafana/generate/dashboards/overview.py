"""The first look: does it learn, does it flow, is anything wrong."""

from grafana.generate.dashboards.learning import returns
from grafana.generate.panels import MOVES, ZERO, Board, Row, lines, number, stack, table

BOARD = Board(
    name="overview",
    title="Overview",
    words="Does the run learn, does experience flow, and is anything wrong?",
    rows=(
        Row(
            "Now",
            (
                number(
                    "Sampled steps a second",
                    "short",
                    "Agent steps of all samplers, over the last minute.",
                    'job:headrace_samplers_env_steps:rate1m{job="$job"}',
                    colours=MOVES,
                ),
                number(
                    "Trained steps a second",
                    "short",
                    "Live steps that optimiser steps used, all ranks together.",
                    'max(rate(headrace_learner_samples_total{job="$job"}[$__rate_interval]))',
                    colours=MOVES,
                ),
                number(
                    "Return in training",
                    "none",
                    "Mean of each environment's latest training episodes.",
                    'max(headrace_learner_episode_return_mean{job="$job"})',
                    none="no episode yet",
                ),
                number(
                    "Return in evaluation",
                    "none",
                    "Mean of the last evaluation.",
                    'max(headrace_evaluator_return_mean{job="$job"})',
                    none="no evaluator",
                ),
                number(
                    "Version",
                    "none",
                    "The learner's version: optimiser steps, roughly.",
                    'headrace_broker_version{job="$job"}',
                ),
                number(
                    "Unrolls unaccounted for",
                    "none",
                    "Lost by our own counting. Anything but 0 is a fault of Headrace.",
                    'sum(abs(headrace_broker_ledger_unaccounted{job="$job"}))'
                    ' + sum(abs(headrace_samplers_ledger_unaccounted{job="$job"}))'
                    ' + (sum(abs(headrace_learner_ledger_unaccounted{job="$job"})) or vector(0))',
                    colours=ZERO,
                ),
            ),
        ),
        Row(
            "Progress",
            (
                lines(
                    "Throughput",
                    "short",
                    "Sampled and trained steps a second. Trained above sampled: the algorithm uses"
                    " its unrolls more than once. Far below: unrolls are refused, see the ledger.",
                    {
                        "sampled": 'job:headrace_samplers_env_steps:rate1m{job="$job"}',
                        "trained": "max(rate(headrace_learner_samples_total"
                        '{job="$job"}[$__rate_interval]))',
                    },
                ),
                returns(),
                lines(
                    "Optimiser steps a second",
                    "short",
                    "Of one rank; all ranks step together.",
                    {
                        "steps": "max(rate(headrace_learner_steps_total"
                        '{job="$job"}[$__rate_interval]))'
                    },
                ),
            ),
        ),
        Row(
            "Flow",
            (
                lines(
                    "Lag",
                    "none",
                    "Versions from an unroll's first step to its dispatch: up to max_lag + 2.",
                    {
                        "median": 'job:headrace_broker_fragment_lag_versions:p50{job="$job"}',
                        "95th percentile": "job:headrace_broker_fragment_lag_versions:p95"
                        '{job="$job"}',
                        "max_lag": 'headrace_broker_max_lag_versions{job="$job"}',
                    },
                ),
                stack(
                    "Unrolls at the broker",
                    "none",
                    "Waiting, and leased to learners. Always full: the learner is the bottleneck."
                    " Always empty: the samplers are.",
                    {
                        "waiting": 'headrace_broker_queue_fragments{job="$job"}',
                        "leased": 'headrace_broker_leased_fragments{job="$job"}',
                    },
                ),
                stack(
                    "Outcomes a second",
                    "short",
                    "What became of unrolls. All but trained should be rare.",
                    {"{{outcome}}": 'job:headrace_broker_fragments:rate1m{job="$job"}'},
                ),
            ),
        ),
        Row(
            "Health",
            (
                table(
                    "Alerts",
                    "What fires now. RUNBOOK.md has a section for each.",
                    'ALERTS{alertstate="firing", alertname!="DeadMansSwitch", job=~"$job|"}',
                    {
                        "alertname": "Alert",
                        "severity": "Severity",
                        "role": "Role",
                        "instance": "Process",
                    },
                    none="Nothing fires",
                ),
                lines(
                    "Processes",
                    "none",
                    "Peers that the broker hears, by role; and those it has not heard for more than"
                    " two and a half beats.",
                    {
                        "{{role}}": 'headrace_broker_sessions{job="$job"}',
                        "late {{role}}": 'headrace_broker_late_peers{job="$job"}',
                    },
                ),
                lines(
                    "Scraped",
                    "none",
                    "Targets that answer, by role. Samplers are scraped only where they were given"
                    " a metrics port.",
                    {"{{role}}": 'sum by (role) (up{job="$job"})'},
                ),
                lines(
                    "Troubles",
                    "none",
                    "Errors that peers told the broker of, in each interval; the page at the"
                    " broker's port shows their text.",
                    {
                        "{{role}}": "increase(headrace_broker_troubles_total"
                        '{job="$job"}[$__rate_interval])'
                    },
                ),
                table(
                    "Run",
                    "Name, algorithm and environment.",
                    'headrace_run_info{job="$job", role="broker"}'
                    ' or on (job) headrace_run_info{job="$job"}',
                    {"run": "Run", "algorithm": "Algorithm", "env": "Environment"},
                ),
                table(
                    "Releases",
                    "What runs where; more than one release at a time is for upgrades.",
                    'count by (role, version, python) (headrace_build_info{job="$job"})',
                    {
                        "role": "Role",
                        "version": "Headrace",
                        "python": "Python",
                        "Value": "Processes",
                    },
                ),
            ),
        ),
    ),
)
