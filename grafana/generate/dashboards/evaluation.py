"""Evaluation: the score that counts."""

from grafana.generate.dashboards.learning import own_metrics, returns
from grafana.generate.panels import Board, Row, lines

_NONE = "No evaluator with a metrics port"

BOARD = Board(
    name="evaluation",
    title="Evaluation",
    words="What the evaluators found: scores with their intervals, and how they keep up.",
    rows=(
        Row(
            "Scores",
            (
                returns(width=16),
                lines(
                    "Width of the interval",
                    "none",
                    "High less low. Two versions whose means lie closer cannot be told apart;"
                    " more episodes make it narrower.",
                    {
                        "{{instance}}": 'headrace_evaluator_return_high{job="$job"}'
                        ' - headrace_evaluator_return_low{job="$job"}'
                    },
                    none=_NONE,
                ),
                own_metrics(
                    'headrace_evaluator_metric{job="$job"}',
                    "the episodes of the last evaluation",
                    width=24,
                ),
            ),
        ),
        Row(
            "Keeping up",
            (
                lines(
                    "Versions",
                    "none",
                    "Trained, and evaluated last.",
                    {
                        "learner": 'headrace_broker_version{job="$job"}',
                        "{{instance}}": 'headrace_evaluator_version{job="$job"}',
                    },
                    low=None,
                ),
                lines(
                    "Duration",
                    "s",
                    "Of the last evaluation.",
                    {"{{instance}}": 'headrace_evaluator_seconds{job="$job"}'},
                    none=_NONE,
                ),
                lines(
                    "Episodes",
                    "none",
                    "Of the last evaluation.",
                    {"{{instance}}": 'headrace_evaluator_episodes{job="$job"}'},
                    none=_NONE,
                ),
                lines(
                    "Evaluations in ten minutes",
                    "none",
                    "Done, and failed; the log says why.",
                    {
                        "{{instance}} done": "increase(headrace_evaluator_evaluations_total"
                        '{job="$job"}[10m])',
                        "{{instance}} failed": "increase(headrace_evaluator_failures_total"
                        '{job="$job"}[10m])',
                    },
                    none=_NONE,
                ),
            ),
        ),
    ),
)
