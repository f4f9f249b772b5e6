"""Panels about learning that several dashboards have."""

from typing import Final

from grafana.generate.panels import Panel, lines


def returns(*, width: int = 8) -> Panel:
    """Describes the returns of training and evaluation."""
    return lines(
        "Return",
        "none",
        "Training episodes explore; evaluations play greedily unless the run says otherwise. The"
        " area is the evaluation's 95 % interval.",
        {
            "training": 'max(headrace_learner_episode_return_mean{job="$job"})',
            "evaluation": 'max(headrace_evaluator_return_mean{job="$job"})',
            "low": 'max(headrace_evaluator_return_low{job="$job"})',
            "high": 'max(headrace_evaluator_return_high{job="$job"})',
        },
        width=width,
        low=None,
        none="No episode has ended yet",
        band=("low", "high"),
    )


EPISODE_LENGTH: Final = lines(
    "Episode length",
    "none",
    "Agent steps of an episode in training, a mean over the episodes of the mean return.",
    {"steps": 'max(headrace_learner_episode_length_mean{job="$job"})'},
    none="No episode has ended lately",
)


def own_metrics(query: str, words: str, *, width: int = 8) -> Panel:
    """Describes what the run's author measures besides."""
    return lines(
        "The environment's own metrics",
        "none",
        f"Of env.metrics, a mean of the last values in {words}. Which way is good, only who wrote"
        " the environment knows.",
        {"{{name}}": f"max by (name) ({query})"},
        width=width,
        low=None,
        none="The run names no env.metrics",
    )
