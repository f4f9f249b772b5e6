"""The folder of a run that has trained a little."""

import json
from pathlib import Path

from headrace.launch.config import run_file


def training(number: int) -> str:
    """A line of its history."""
    line = {"t": float(number), "trained_steps": 100 * number, "mean_return": 1.5 * number}
    return json.dumps(line)


def leave_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "run.toml").write_text(
        run_file.effective(run_file.load("cartpole", ["learner.lr=0.5"]))
    )
    (folder / "history.jsonl").write_text("".join(f"{training(n)}\n" for n in (1, 2, 3)))
    score = {"t": 2.5, "trained_steps": 200, "mean": 42.0, "greedy": True}
    (folder / "evaluations.jsonl").write_text(f"{json.dumps(score)}\n")
    return folder
