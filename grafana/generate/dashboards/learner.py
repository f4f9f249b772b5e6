"""The learner: where its time goes, and whether the numbers are sound."""

from grafana.generate.dashboards.learning import EPISODE_LENGTH, own_metrics, returns
from grafana.generate.panels import BAD, Board, Row, age, heatmap, lines, number, stack, table

_CHECKPOINT = 'headrace_learner_last_checkpoint_timestamp_seconds{job="$job"}'

_TIME = (
    lines(
        "Optimiser steps a second",
        "short",
        "By rank; all ranks step together.",
        {"{{instance}}": 'rate(headrace_learner_steps_total{job="$job"}[$__rate_interval])'},
    ),
    stack(
        "Phases",
        "percentunit",
        "Where a rank's time goes, a mean over the ranks. Much waiting: samplers are too slow, or"
        " max_lag is too tight.",
        {
            "{{phase}}": "avg by (phase) (rate(headrace_learner_phase_seconds_total"
            '{job="$job"}[$__rate_interval]))'
        },
    ),
    lines(
        "Waiting, each rank",
        "percentunit",
        "All ranks wait for the slowest: the one that waits least is the one to look at.",
        {
            "{{instance}}": "rate(headrace_learner_phase_seconds_total"
            '{job="$job", phase="wait"}[$__rate_interval])'
        },
    ),
    heatmap("Step", "s", "Upload to optimiser step.", "headrace_learner_step_seconds_bucket"),
    lines(
        "Since the last step",
        "s",
        "By rank; grows without end when it stands still.",
        {"{{instance}}": age('headrace_learner_last_step_timestamp_seconds{job="$job"}')},
    ),
    lines(
        "GPU memory",
        "bytes",
        "By rank.",
        {"{{instance}}": 'headrace_learner_gpu_memory_bytes{job="$job"}'},
        none="No learner with a GPU",
    ),
)

_LEARNING = (
    returns(width=16),
    EPISODE_LENGTH,
    own_metrics(
        'headrace_learner_metric{job="$job", stat="episode"}', "the latest training episodes"
    ),
    lines(
        "Entropy",
        "none",
        "Of the policy, in nats, a mean over steps. It falls as the policy grows certain; near 0"
        " early in a run means that it stopped exploring.",
        {"entropy": 'avg(headrace_learner_entropy_nats{job="$job"})'},
        low=None,
    ),
    lines(
        "KL divergence",
        "none",
        "In nats: of the policy from the one that acted, and from the target network where the"
        " algorithm has one. A jump is a step that was too large, or data that is too old.",
        {"{{other}}": 'avg by (other) (headrace_learner_kl_nats{job="$job"})'},
    ),
    lines(
        "Explained variance",
        "none",
        "Share of the returns' variance that the value network foresees: 1 = all of it, 0 = none,"
        " below 0 = worse than one number for all. It should rise in the first minutes.",
        {"explained": 'avg(headrace_learner_explained_variance{job="$job"})'},
        low=None,
    ),
    lines(
        "Policy loss",
        "none",
        "Before its coefficient. It has no level that would be good.",
        {"policy": 'avg(headrace_learner_loss{job="$job", part="policy"})'},
        low=None,
    ),
    lines(
        "Value loss",
        "none",
        "Before its coefficient: half the squared error of the values.",
        {"value": 'avg(headrace_learner_loss{job="$job", part="value"})'},
    ),
    lines(
        "Steps that the policy left behind",
        "percentunit",
        "Of the trained ones: beyond the clip (appo, ppo), or drifted beyond"
        " algorithm.drift_limit (impala, appo). Above a half: the data is too old.",
        {"{{how}}": 'avg by (how) (headrace_learner_step_share{job="$job"})'},
    ),
    lines(
        "Importance ratio",
        "none",
        "Probability of the played actions, policy of now / policy that acted: near 1.",
        {"mean": 'avg(headrace_learner_importance_ratio{job="$job"})'},
        low=None,
    ),
    lines(
        "Gradient norm",
        "none",
        "Before clipping.",
        {"norm": 'max(headrace_learner_grad_norm{job="$job"})'},
    ),
    lines(
        "Step size",
        "none",
        "The schedule's present value.",
        {"lr": 'max(headrace_learner_lr{job="$job"})'},
    ),
    heatmap(
        "Lag",
        "none",
        "Versions between an unroll's first step and its training.",
        "headrace_learner_lag_versions_bucket",
    ),
    lines(
        "Age of steps",
        "none",
        "Versions between acting and training, of the steps trained lately. A slow unroll's last"
        " steps are younger than its first.",
        {"{{stat}}": 'max by (stat) (headrace_learner_step_lag_versions{job="$job"})'},
    ),
    lines(
        "Use of experience",
        "none",
        "How often an unroll is used, and trained steps for each sampled one. They differ by what"
        " was refused.",
        {
            "uses of an unroll": 'max(headrace_learner_reuse{job="$job"})',
            "trained for each sampled": 'job:headrace_learner_samples:ratio_rate5m{job="$job"}',
        },
    ),
    lines(
        "Log-probability gap",
        "none",
        "What a sampler recorded against what the learner computes for the same version, the"
        " largest. Above rounding (1e-2 with int8 or bf16) the two do not run the same network.",
        {"{{instance}}": 'headrace_learner_logprob_gap{job="$job"}'},
    ),
    lines(
        "Steps skipped",
        "none",
        "Loss or gradient was not finite, in each interval.",
        {"{{what}}": 'increase(headrace_learner_nonfinite_total{job="$job"}[$__rate_interval])'},
    ),
)

_STATE = (
    number("Ranks", "none", "That train together.", 'max(headrace_learner_world{job="$job"})'),
    number("Version", "none", "Trained up to.", 'max(headrace_learner_version{job="$job"})'),
    number(
        "Checkpoints",
        "none",
        "Written since the process began.",
        'sum(headrace_learner_checkpoint_total{job="$job", result="ok"})',
    ),
    number(
        "Checkpoints failed",
        "none",
        "Since the process began; the log says why.",
        'sum(headrace_learner_checkpoint_total{job="$job", result="failed"})',
        colours=BAD,
    ),
    table(
        "Ranks and their processes",
        "Which process is which rank.",
        'headrace_learner_rank{job="$job"}',
        {"Value": "Rank", "instance": "Process"},
    ),
    lines(
        "Age of the checkpoint",
        "s",
        "What a crash now would cost, beside the run's interval.",
        {
            "age": f"min({age(_CHECKPOINT)})",
            "interval": 'max(headrace_learner_checkpoint_interval_seconds{job="$job"})',
        },
    ),
    lines(
        "Unrolls held",
        "none",
        "Delivered and not trained; and ready for the next steps.",
        {
            "{{instance}} held": 'headrace_learner_held_fragments{job="$job"}',
            "{{instance}} ready": 'headrace_learner_batch_queue_fragments{job="$job"}',
        },
    ),
    lines(
        "Reconnects",
        "none",
        "To the broker, in each interval.",
        {
            "{{instance}}": "increase(headrace_learner_reconnects_total"
            '{job="$job"}[$__rate_interval])'
        },
    ),
)

BOARD = Board(
    name="learner",
    title="Learner",
    words="Where the learner's time goes, and whether its numbers are sound.",
    rows=(Row("Time", _TIME), Row("Learning", _LEARNING), Row("State", _STATE)),
)
