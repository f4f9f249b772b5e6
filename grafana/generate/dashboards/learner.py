"""The learner: where its time goes, and whether the numbers are sound."""

from grafana.generate.grafana_json import Board, Row, heatmap, lines, number, stack, table

_TIME = (
    lines(
        "Optimiser steps a second",
        "cps",
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
        {"{{instance}}": 'time() - (headrace_learner_last_step_timestamp_seconds{job="$job"} > 0)'},
    ),
    lines(
        "GPU memory",
        "bytes",
        "By rank; empty without a GPU.",
        {"{{instance}}": 'headrace_learner_gpu_memory_bytes{job="$job"}'},
    ),
)

_LEARNING = (
    lines(
        "Return",
        "none",
        "Mean of each environment's latest training episodes.",
        {"training": 'max(headrace_learner_episode_return_mean{job="$job"})'},
        low=None,
    ),
    lines(
        "Loss parts",
        "none",
        "As the algorithm names them.",
        {"{{part}}": 'avg by (part) (headrace_learner_loss{job="$job"})'},
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
    ),
    table("Rank of each target", "The value is the rank.", 'headrace_learner_rank{job="$job"}'),
    lines(
        "Age of the checkpoint",
        "s",
        "What a crash now would cost, beside the run's interval.",
        {
            "age": "time() - (max(headrace_learner_last_checkpoint_timestamp_seconds"
            '{job="$job"}) > 0)',
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
