"""A fake in the place of subprocess: a training writes what its settings would bring, at once."""

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.launch.config import run_file

Brings = Callable[[run_file.Run], dict[str, Any]]


class Fake:
    """Starts fake trainings, which end when they have been looked at `looks` times."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, brings: Brings, *, looks: int = 1) -> None:
        self.brings, self.looks = brings, looks
        self.started: list[list[str]] = []
        self.now = self.most = 0

    def Popen(self, words: list[str], **_: Any) -> "FakeProcess":  # noqa: N802 - as subprocess has it
        self.started.append(words)
        self.now += 1
        self.most = max(self.most, self.now)
        return FakeProcess(self, words)


class FakeProcess:
    """Writes, once looked at, what the run brings: its summary, and the last line of its history.
    A run that brings no stop_reason goes on until it is asked to end."""

    def __init__(self, fake: Fake, words: list[str]) -> None:
        self._fake, self._looks, self._status = fake, fake.looks, None
        self._out = Path(words[words.index("--out") + 1])
        sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
        self.run = run_file.load(words[words.index("train") + 1], sets)

    def poll(self) -> int | None:
        if self._status is None:
            self._looks -= 1
            brings = self._fake.brings(self.run)
            self._out.mkdir(parents=True, exist_ok=True)
            line = {"t": 1.0, "lr": self.run.learner.lr, **brings}
            (self._out / "run.toml").write_text(run_file.effective(self.run))
            (self._out / "history.jsonl").write_text(f"{json.dumps(line)}\n")
            if self._looks <= 0 and "stop_reason" in brings:
                self._end({"wall_s": 2.0, **brings})
        return self._status

    def terminate(self) -> None:
        if self._status is None:
            self._end({"stop_reason": "stopped"})

    def wait(self, _: float = 0.0) -> int:
        return 0

    def _end(self, summary: dict[str, Any]) -> None:
        self._fake.now -= 1
        self._status = 0  # type: ignore[assignment]
        (self._out / "summary.json").write_text(json.dumps(summary))
        version = self._out / "checkpoints" / "000000000001"
        version.mkdir(parents=True, exist_ok=True)
