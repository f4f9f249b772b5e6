"""`headrace sweep`: a run with several seeds and settings, each an ordinary `headrace train`.

Started again on its folder it goes on: what has ended is left alone, what was begun is resumed.
"""

import itertools
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.launch.comparison import compare, training
from headrace.launch.comparison.training import CORES, Training
from headrace.launch.config import run_file, starts
from headrace.launch.process import logs, runtime

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
_LONGEST_NAME = 200  # of a folder, beside which ".log" is a file


@dataclass(slots=True)
class _Planned:
    """Holds one run of the sweep."""

    name: str
    run: run_file.Run
    training: Training

    @property
    def over(self) -> bool:
        return bool(starts.finished(self.run.stop, self.training.out))


def sweep(
    run: str, sets: Sequence[str], *, seeds: str, out: Path | None, parallel: int | None
) -> int:
    """Trains all, so many at a time, and compares them; returns the exit status."""
    folder = out or Path("headrace-sweeps") / Path(run).stem
    # What is wrong with any of them is said before the first one starts.
    planned = _planned(run, grid(sets, read_seeds(seeds)), folder)
    logs.start("sweep")
    asked = runtime.StopRequested()
    waiting = [one for one in planned if not one.over]
    log.info(
        "%d runs in %s, %d of them complete already",
        len(planned),
        folder,
        len(planned) - len(waiting),
    )
    _train(waiting, parallel or max(1, runtime.cores() // CORES), asked)
    if asked:
        log.warning("stopped; the same command goes on with what is left")
        return runtime.LIMIT
    failed = [one for one in planned if not one.over]
    for one in failed:
        log.error("%s failed; see %s", one.name, one.training.log)
    if ended := [one.training.out for one in planned if one.over and _has_returns(one)]:
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


def read_seeds(text: str) -> list[int]:
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
        one = _Planned(name, run_file.load(run, sets), Training(run, sets, folder / name))
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
    difference = training.difference(one.training.out, one.run)
    if difference is not None:
        raise run_file.ConfigError(
            f"{one.training.out} holds another run: {difference.place} is {difference.there} there,"
            f" and {difference.here} here; choose another folder with --out"
        )


def _has_returns(one: _Planned) -> bool:
    try:
        compare.read(one.training.out)
    except run_file.ConfigError as error:
        log.warning("not compared: %s", error)
        return False
    return True


def _train(waiting: list[_Planned], parallel: int, asked: runtime.StopRequested) -> None:
    """Trains all that wait, so many at a time; when asked to stop it ends those that train."""
    trains: list[_Planned] = []
    try:
        while (waiting or trains) and not asked:
            while waiting and len(trains) < parallel:
                trains.append(waiting.pop(0))
                goes_on = trains[-1].training.start()
                log.info("%s %s", trains[-1].name, "goes on" if goes_on else "trains")
            time.sleep(_LOOK_EVERY_S)
            for one in [one for one in trains if one.training.ended]:
                trains.remove(one)
                log.info("%s has ended; %d train, %d wait", one.name, len(trains), len(waiting))
    finally:
        training.end(one.training for one in trains)
