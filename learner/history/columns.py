"""The columns of history.jsonl and what they mean; the reference page is made from this table."""

from typing import Final

from headrace.learner.metrics import PHASES

_PHASES: Final = {
    "wait": "waiting for unrolls",
    "upload": "copying a batch to the device",
    "forward": "network and loss; all of a compiled step",
    "backward": "gradients",
    "optimise": "the optimiser's step",
    "publish": "copying the new weights out",
    "checkpoint": "writing checkpoints",
    "others": "training other networks in the same process",
}

# In every line.
ALWAYS: Final = {
    "t": "seconds of the run, over all its starts",
    "version": "the version of the weights",
    "trained_steps": "agent steps trained on",
    "episodes": "episodes that ended",
    "mean_return": "mean return of the latest episodes, each environment weighs the same; `null`"
    " until there is one",
    "mean_length": "mean length of the same episodes, in agent steps; `null` until there is one",
    "lag": "versions between an unroll's first step and its training, mean over the run's unrolls",
}
# Once an optimiser step was made since the line before, as those that follow.
PACE: Final = {
    "steps_per_s": "agent steps trained on a second, since the line before",
    **{
        f"time_{phase}": f"share of the learner's time since the line before: {_PHASES[phase]}"
        for phase in PHASES
    },
}
TRAINED: Final = {
    "lag_mean": "versions between acting and training of the steps trained since the line before",
    "lag_p99": "99th percentile of the same",
    "policy_loss": "part of the loss, mean over steps: of the policy",
    "value_loss": "part of the loss, mean over steps: of the values",
    "entropy": "of the policy, in nats, mean over steps",
    "rho_mean": "mean ratio of the probabilities: policy of now / policy that acted",
    "kl": "estimate of KL(policy that acted, policy of now)",
    "clip_fraction": "`appo`, `ppo`: share of steps beyond the clip",
    "drift_fraction": "`impala`, `appo`: share of steps beyond `algorithm.drift_limit`",
    "advantage_square": 'where `algorithm.normalise_advantages` is "running": mean square of the'
    " advantages, in the rewards' units",
    "target_kl": "`appo` with `algorithm.kl_coef`: KL to the target network",
    "explained_variance": "share of the value targets' variance that the values explain: 1 = all,"
    " 0 = as one number for all would; at least -1",
    "grad_norm": "norm of the gradient before it was clipped",
    "lr": "the step size, as it is used, as the three that follow",
    "entropy_coef": "`algorithm.entropy_coef`",
    "clip": "`appo`, `ppo`: `algorithm.clip`",
    "kl_coef": "`appo`: `algorithm.kl_coef`, or what `algorithm.kl_target` has made of it",
}
# Of each metric NAME of env.metrics.
METRICS: Final = {
    "metric.NAME": "last value in an episode, mean over the latest episodes, as in `mean_return`",
    "metric.NAME.mean": "mean over the steps trained on since the line before that gave it",
    "metric.NAME.min": "least value of these steps",
    "metric.NAME.max": "greatest value of these steps",
    "metric.NAME.count": "number of these steps",
    "metric.NAME.last": "last value in the latest episode that ended since the line before",
}
# Of each attribute KEY of env.settings.
SETTINGS: Final = {"setting.KEY": "what samplers play with from this version on"}
COLUMNS: Final = {**ALWAYS, **PACE, **TRAINED, **METRICS, **SETTINGS}
