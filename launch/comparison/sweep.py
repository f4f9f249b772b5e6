"""`headrace sweep`: a run with several seeds and settings, each an ordinary `headrace train`.

Started again on its folder it goes on: what has ended is left alone, what was begun is resumed.
"""

import itertools
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.launch.comparison import compare
from headrace.launch.config import differences, run_file, starts
from headrace.launch.process import forking, logs, runtime

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
# Of a run that is asked to end: it writes a checkpoint, and waits for its samplers.
_ENDS_WITHIN_S = 60.0
_CORES = 2  # that a run keeps busy
_LONGEST_NAME = 200  # of a folder, beside which ".log" is a file


@dataclass(slots=True)
class _Planned:
    """Holds one run of the sweep."""

    name: str
    run: run_file.Run
    sets: tuple[str, ...]
    out: Path
    process: subprocess.Popen[bytes] | None = None  # None = it has not been started

    @property
    def over(self) -> bool:
        return bool(starts.finished(self.run.stop, self.out))

    @property
    def log(self) -> Path:
        return self.out.with_name(f"{self.name}.log")


def sweep(
    run: str, sets: Sequence[str], *, seeds: str, out: Path | None, parallel: int | None
) -> int:
    """Trains all, so many at a time, and compares them; returns the exit status."""
    folder = out or Path("headrace-sweeps") / Path(run).stem
    # What is wrong with any of them is said before the first one starts.
    planned = _planned(run, grid(sets, _seeds(seeds)), folder)
    logs.start("sweep")
    asked = runtime.StopRequested()
    waiting = [one for one in planned if not one.over]
    log.info(
        "%d runs in %s, %d of them complete already",
        len(planned),
        folder,
        len(planned) - len(waiting),
    )
    _train(run, waiting, parallel or max(1, runtime.cores() // _CORES), asked)
    if asked:
        log.warning("stopped; the same command goes on with what is left")
        return runtime.LIMIT
    failed = [one for one in planned if not one.over]
    for one in failed:
        log.error("%s failed; see %s", one.name, one.log)
    if ended := [one.out for one in planned if one.over and _has_returns(one)]:
        compare.compare(ended, page=folder / "compared.html", table=folder / "compared.csv")
    return runtime.OUR_FAULT if failed else runtime.OK


def grid(sets: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, ...]]:
    """Returns the settings of each run: every value that --set lists with every other, and seed."""
    listed = []
    for setting in sets:
        key, _, values = setting.partition("=")
        found = split(values)
        if not key or not all(found):
            raise run_file.ConfigError(f"--set {setting}: it is SECTION.KEY=VALUE,VALUE,..")
        listed.append([f"{key}={value}" for value in found])
    listed.append([f"run.seed={seed}" for seed in seeds])
    return list(itertools.product(*listed))


def split(values: str) -> list[str]:
    """Splits at the commas that stand in no list, table or string."""
    found, depth, quote = [""], 0, ""
    for letter in values:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]


def _seeds(text: str) -> list[int]:
    """Reads 1..5, or 1,4,7."""
    first, dots, last = text.partition("..")
    words = [first, last] if dots else text.split(",")
    if not all(word.isdecimal() and int(word) < 2**31 for word in words):
        raise run_file.ConfigError(f"--seeds {text}: it is FIRST..LAST, or SEED,SEED,..")
    numbers = list(map(int, words))
    if not dots:
        return list(dict.fromkeys(numbers))
    if numbers[0] > numbers[1] or numbers[1] - numbers[0] >= 1000:
        raise run_file.ConfigError(f"--seeds {text}: from a smaller to a larger, at most 1000")
    return list(range(numbers[0], numbers[1] + 1))


def _planned(run: str, combinations: Sequence[tuple[str, ...]], folder: Path) -> list[_Planned]:
    """Returns all runs; ConfigError where two cannot be told apart or compared, or where the folder
    holds others."""
    varied = [len(set(column)) > 1 for column in zip(*combinations, strict=True)]
    varied[-1] = True  # the seed
    found: dict[str, _Planned] = {}
    for sets in dict.fromkeys(combinations):
        named = [one.partition(".")[2] for one, varies in zip(sets, varied, strict=True) if varies]
        name = re.sub(r"[^\w.=-]+", "_", "-".join(named))
        one = _Planned(name, run_file.load(run, sets), sets, folder / name)
        if name in found or len(name) > _LONGEST_NAME:
            raise run_file.ConfigError(
                f"{name:.200}: two runs would have this name, or it is too long"
            )
        found[name] = one
        _check_folder(one)
    envs = dict.fromkeys(one.run.env.id for one in found.values())
    if len(envs) > 1:
        raise run_file.ConfigError(
            f"runs of different environments cannot be compared: {', '.join(envs)}"
        )
    return list(found.values())


def _check_folder(one: _Planned) -> None:
    """Raises ConfigError where another run is in its folder."""
    if not (one.out / starts.RUN).is_file():
        return
    kept = run_file.to_dict(starts.load_kept(one.out))
    difference = next(differences.differences(kept, run_file.to_dict(one.run)), None)
    if difference is not None:
        raise run_file.ConfigError(
            f"{one.out} holds another run: {difference.place} is {difference.there} there, and"
            f" {difference.here} here; choose another folder with --out"
        )


def _has_returns(one: _Planned) -> bool:
    try:
        compare.read(one.out)
    except run_file.ConfigError as error:
        log.warning("not compared: %s", error)
        return False
    return True


def _train(run: str, waiting: list[_Planned], parallel: int, asked: runtime.StopRequested) -> None:
    """Trains all that wait, so many at a time; when asked to stop it ends those that train."""
    training: list[_Planned] = []
    try:
        while (waiting or training) and not asked:
            while waiting and len(training) < parallel:
                training.append(waiting.pop(0))
                _start(run, training[-1])
            time.sleep(_LOOK_EVERY_S)
            for one in [one for one in training if one.process and one.process.poll() is not None]:
                training.remove(one)
                log.info("%s has ended; %d train, %d wait", one.name, len(training), len(waiting))
    finally:
        processes = [one.process for one in training if one.process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _ENDS_WITHIN_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _start(run: str, one: _Planned) -> None:
    words = ["train", run, "--quiet", "--out", str(one.out)]
    words += [word for setting in one.sets for word in ("--set", setting)]
    words += ["--resume"] * starts.has_checkpoints(one.out)
    one.out.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()
    with one.log.open("ab") as sink:
        one.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.launch.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            preexec_fn=lambda: forking.become_child(parent),
        )
    log.info("%s %s", one.name, "goes on" if "--resume" in words else "trains")
