"""Runs with one thing wrong, and healthy ones, as they were recorded on two cores.

    python -m tests.launch.explain.recorded_faults FOLDER [NAME ...]    all of them: ten minutes

With FOLDER `tests/launch/explain/recordings` it makes the recordings that tests read.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parent / "recordings"
_MOST_LINES = 32  # of a history that are kept
_COLUMNS = (
    "t", "trained_steps", "version", "mean_return", "entropy", "kl", "policy_loss", "value_loss",
    "explained_variance", "grad_norm", "rho_mean", "lag_mean", "lr", "time_wait", "time_upload",
    "time_forward", "time_backward", "time_optimise", "time_publish", "time_checkpoint",
)  # fmt: skip
_KEPT = (
    "stop_reason", "env_steps", "wall_s", "first_train_s", "cpu_s",
    "nonfinite_steps", "unrolls", "sampler_seconds", "phase_seconds", "machine",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded:
    """Holds a run, what is wrong with it, and which finding says so; "" = nothing is wrong."""

    run: str
    finding: str
    sets: tuple[str, ...] = ()


def _bare(env: str, algorithm: str, steps: int) -> tuple[str, ...]:
    return (f"env.id={env}", f"algorithm.name={algorithm}", f"stop.steps={steps}")


_SPEED = ("stop.return=none", "stop.seconds=12")
_LEARNS = ("stop.seconds=15",)
# 8 environments for each sampler, in its own thread one after another.
_SLEEPER = (
    "actor.stepping=inline", "unroll.length=20", "unroll.envs=1", "actor.groups=8",
    "pacing.batch_unrolls=8", "pacing.max_lag=2",
)  # fmt: skip
_SLEEPS = ("env.kwargs.step_s=0.005", "env.kwargs.busy=false")
ALL = {
    "healthy-appo": Recorded("cartpole", ""),
    "healthy-ppo": Recorded("cartpole-ppo", ""),
    "healthy-vector": Recorded("cartpole-vector", ""),
    "healthy-catch": Recorded("catch", ""),
    "healthy-masked": Recorded("masked", ""),
    "healthy-acrobot": Recorded("acrobot", ""),
    "healthy-pendulum": Recorded("pendulum", "", ("stop.steps=300_000",)),
    "healthy-pendulum-ppo": Recorded("pendulum-ppo", ""),
    "healthy-tmaze": Recorded("tmaze", ""),
    "healthy-bare-appo": Recorded("bare", "", _bare("CartPole-v1", "appo", 60_000)),
    "healthy-bare-appo-pendulum": Recorded("bare", "", _bare("Pendulum-v1", "appo", 60_000)),
    "healthy-bare-impala": Recorded("bare", "", _bare("CartPole-v1", "impala", 60_000)),
    "healthy-bare-impala-catch": Recorded("bare", "", _bare("headrace/Catch-v0", "impala", 6_000)),
    "healthy-bare-ppo": Recorded("bare", "", _bare("Acrobot-v1", "ppo", 60_000)),
    "healthy-bare-ppo-pendulum": Recorded("bare", "", _bare("Pendulum-v1", "ppo", 60_000)),
    "one-core": Recorded(
        "lockstep-busy",
        "one core",
        (*_SLEEPER, "stop.seconds=15", "env.kwargs.step_s=0.001", "actor.count=1"),
    ),
    "slow-environment": Recorded(
        "lockstep-busy",
        "slow environment",
        (*_SLEEPER, *_SLEEPS, "stop.seconds=20", "actor.count=2"),
    ),
    "acting": Recorded("cartpole", "acting", (*_SPEED, "unroll.envs=1", "pacing.batch_unrolls=32")),
    "learner": Recorded("cartpole", "learner", (*_SPEED, "model.hidden=[1024,1024]")),
    "pacing": Recorded(
        "cartpole", "pacing", (*_SPEED, "pacing.max_lag=0", "pacing.max_lag_hard=8")
    ),
    "checkpoints": Recorded("cartpole", "learner", (*_SPEED, "checkpoint.every_s=0.01")),
    "step-size": Recorded(
        "cartpole-ppo", "step size", (*_LEARNS, "learner.lr=0.3", "learner.grad_clip=0")
    ),
    "entropy-gone": Recorded(
        "cartpole-impala",
        "entropy gone",
        (*_LEARNS, "learner.lr=0.02", "algorithm.entropy_coef=0.0"),
    ),
    "entropy-bonus": Recorded(
        "cartpole", "entropy bonus", (*_LEARNS, "algorithm.entropy_coef=1.0")
    ),
    "no-values": Recorded("cartpole", "values", (*_LEARNS, "algorithm.value_coef=0.0")),
    "clipped": Recorded("cartpole", "gradient clipped", (*_LEARNS, "learner.grad_clip=0.0001")),
    "small-steps": Recorded("cartpole", "flat", (*_LEARNS, "learner.lr=1e-7")),
    "rewards-large": Recorded(
        "cartpole", "reward scale", (*_LEARNS, "algorithm.reward_scale=100.0")
    ),
    "rewards-small": Recorded(
        "cartpole", "reward scale", (*_LEARNS, "algorithm.reward_scale=1e-6")
    ),
    "lag": Recorded("cartpole", "lag", (*_LEARNS, "pacing.max_lag=64", "pacing.max_lag_hard=200")),
}


def keep(folder: Path, to: Path) -> None:
    """Keeps of a run's folder what explain reads, thinned: the same lines are enough."""
    to.mkdir(parents=True, exist_ok=True)
    run = (folder / "run.toml").read_text().splitlines()
    without_words = (re.sub("  # .*", "", line) for line in run if line and line[0] != "#")
    (to / "run.toml").write_text("".join(f"{line}\n" for line in without_words))
    summary = json.loads((folder / "summary.json").read_text())
    kept = {key: summary[key] for key in _KEPT if key in summary}
    (to / "summary.json").write_text(json.dumps(kept, indent=1) + "\n")
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "entropy" in line]
    every = max(1, -(-len(lines) // _MOST_LINES))
    thinned = ({key: line[key] for key in _COLUMNS if key in line} for line in lines[::every])
    (to / "history.jsonl").write_text("".join(f"{_compact(line)}\n" for line in thinned))


def _compact(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"))


def main(to: Path, *names: str) -> None:
    """Trains every run, or those that are named, and keeps what explain reads of it."""
    for name in names or ALL:
        recorded, out = ALL[name], to / f"{name}.whole"
        words = ["train", recorded.run, "--quiet", "--out", str(out), "--seed", "1"]
        words += [word for one in recorded.sets for word in ("--set", one)]
        subprocess.run([sys.executable, "-m", "headrace.launch.cli", *words], check=False)
        keep(out, to / name)
        shutil.rmtree(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
