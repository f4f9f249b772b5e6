"""Evaluation: the score that counts."""

from grafana.generate.grafana_json import Board, Row, lines

BOARD = Board(
    name="evaluation",
    title="Evaluation",
    words="What the evaluators found: scores with their intervals, and how they keep up.",
    rows=(
        Row(
            "Scores",
            (
                lines(
                    "Return",
                    "none",
                    "Mean of an evaluation with its 95 % interval, and of training episodes.",
                    {
                        "{{instance}} mean": 'headrace_evaluator_return_mean{job="$job"}',
                        "{{instance}} low": 'headrace_evaluator_return_low{job="$job"}',
                        "{{instance}} high": 'headrace_evaluator_return_high{job="$job"}',
                        "training": 'max(headrace_learner_episode_return_mean{job="$job"})',
                    },
                    width=16,
                    low=None,
                ),
                lines(
                    "Width of the interval",
                    "none",
                    "High less low. Two versions whose means lie closer cannot be told apart;"
                    " more episodes make it narrower.",
                    {
                        "{{instance}}": 'headrace_evaluator_return_high{job="$job"}'
                        ' - headrace_evaluator_return_low{job="$job"}'
                    },
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
                ),
                lines(
                    "Episodes",
                    "none",
                    "Of the last evaluation.",
                    {"{{instance}}": 'headrace_evaluator_episodes{job="$job"}'},
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
                ),
            ),
        ),
    ),
)
