"""A `headrace train` as a process of its own, and whether it trained by what it was given."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.launch.config import differences, run_file, starts
from headrace.launch.process import forking

# Of a run that is asked to end: it writes a checkpoint, and waits for its samplers.
_ENDS_WITHIN_S = 60.0
CORES = 2  # that a run keeps busy
# Settings of a training that is measured, and ended by whoever measures it.
ENDLESS = ("stop.metric=training", "stop.return=none", "stop.steps=none", "stop.seconds=none")


@dataclass(slots=True)
class Training:
    """Holds one training: the run, what --set changes, and its folder."""

    run: str
    sets: tuple[str, ...]
    out: Path
    evaluate: bool = True  # an evaluator plays beside it, if it can
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """Returns the file beside the folder that has what it says."""
        return self.out.with_name(f"{self.out.name}.log")

    @property
    def ended(self) -> bool:
        """Tells whether its process has ended, or was never started."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Returns its process's number, once it was started."""
        assert self._process is not None, "it was not started"
        return self._process.pid

    def start(self) -> bool:
        """Starts it, from its newest checkpoint if there is one; returns whether there was."""
        words = ["train", self.run, "--quiet", "--out", str(self.out)]
        words += [word for setting in self.sets for word in ("--set", setting)]
        goes_on = starts.has_checkpoints(self.out)
        words += ["--resume"] * goes_on + ["--no-evaluate"] * (not self.evaluate)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.launch.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                preexec_fn=lambda: forking.become_child(parent),
            )
        return goes_on

    def ask_to_end(self) -> None:
        """Asks it to end, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Waits for its end; kills it where that takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end(trainings: Iterable[Training]) -> None:
    """Ends all of them, and waits until they have."""
    asked = list(trainings)
    for one in asked:
        one.ask_to_end()
    deadline = time.monotonic() + _ENDS_WITHIN_S
    for one in asked:
        one.wait(deadline - time.monotonic())


def difference(out: Path, run: run_file.Run) -> differences.Difference | None:
    """Returns the first setting by which the run in the folder is not `run`; None = it is this one,
    or there is none yet. What a search does with a run makes no other run of it."""
    if not (out / starts.RUN).is_file():
        return None
    kept, given = run_file.to_dict(starts.load_kept(out)), run_file.to_dict(run)
    del kept["search"], given["search"]
    return next(differences.differences(kept, given), None)


def settings(run: run_file.Run, keys: Sequence[str]) -> dict[str, object]:
    """Returns what a run has for these keys, as "section.key"."""
    plain = run_file.to_dict(run)
    return {key: plain[key.split(".")[0]][key.split(".")[1]] for key in keys}
