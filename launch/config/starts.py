"""The starts of a run: what each one trains by, and what it leaves for the next.

    OUT/run.toml          the run as it is now: every key
    OUT/starts/001.toml   the run of each start; its first lines say by which file and settings
    OUT/starts/file.toml  the file that the latest start was given, as it was then

A run that is continued goes on as it was. Only deliberate changes count: what has become different
in the named file since the latest start, and what --set says. What would make it another run is
refused.
"""

import contextlib
import datetime
import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from headrace.broker import durable
from headrace.launch.config import algorithm_defaults, differences, run_file, shared_run, toml_text
from headrace.launch.config.algorithm_defaults import Tables
from headrace.launch.config.run_sections import StopSection

log = logging.getLogger(__name__)

RUN = "run.toml"
_FOLDER, _FILE = "starts", "file.toml"

_TOLD = """\
# What an evaluator was told of this run. The rest (run.seed and the sections learner, checkpoint,
# broker, security and stop) is other processes' affair: the learner's folder has the whole run."""


@dataclass(frozen=True, slots=True)
class Start:
    """Holds one start of a run: what it trains by, and how that was given."""

    run: run_file.Run
    out: Path
    file: Path  # the run file that was named
    sets: tuple[str, ...]
    # Those of a continued run: "learner.lr: 1e-05 -> 0.0029". None = it begins.
    changes: tuple[str, ...] | None = None
    resume: bool = field(default=False, kw_only=True)  # it was asked to continue, if it can

    def log_changes(self) -> None:
        """Logs what has changed since the latest start."""
        for change in self.changes or ():
            log.warning("continues with another %s", change)

    def keep(self) -> None:
        """Writes the run's files; OSError where that is not possible.

        run.toml first: a start that finds the named file here must find its changes there, too.
        """
        folder = self.out / _FOLDER
        if not self.resume:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        durable.write(self.out / RUN, run_file.effective(self.run))
        number = 1 + max((int(path.stem) for path in folder.glob("[0-9]*.toml")), default=0)
        text = run_file.effective(self.run, head=self._head(number))
        durable.write(folder / f"{number:03d}.toml", text)
        if not _same_file(self.file, self.out / RUN):
            durable.write(folder / _FILE, self.file.read_bytes())

    def _head(self, number: int) -> str:
        at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        words = " ".join((str(self.file), *(f"--set {setting}" for setting in self.sets)))
        said = [f"Start {number}, {at}: {' '.join(words.split())}", *(self.changes or ())]
        return "\n".join(f"# {line}" for line in said)


def run_folder(
    parent: Path, name: str, *, newest: bool, taken: Callable[[Path], bool] = lambda _: False
) -> Path:
    """Returns a run's default folder: the first of NAME, NAME-2, NAME-3 .. that holds no run yet
    and is not taken by one that begins, or, for `newest`, the one trained last."""
    if newest:
        numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
        there = [folder for folder in parent.glob("*") if numbered.fullmatch(folder.name)]
        return max((f for f in there if _trained_at(f)), key=_trained_at, default=parent / name)
    folders = (parent / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(f for f in folders if not ((f / "checkpoints").exists() or taken(f)))


def policy_folders(out: Path) -> list[Path]:
    """Returns the folders of the policies that were trained in this one; empty = it is a run of one
    policy, or of none."""
    found = sorted(path.parent for path in out.glob(f"*/{RUN}"))
    return [folder for folder in found if folder.with_suffix(".toml").is_file()]


def load_kept(out: Path, sets: Sequence[str] = ()) -> run_file.Run:
    """Returns the run that a run's folder holds; ConfigError when there is none."""
    held = out / RUN
    if not held.is_file():
        if several := ", ".join(map(str, policy_folders(out))):
            raise run_file.ConfigError(f"{out} holds several runs, name one of them: {several}")
        raise run_file.ConfigError(
            f"{out} holds no run: it has no {RUN}; name the folder that headrace train wrote"
        )
    return run_file.load(str(held), sets)


def begin(name: str, sets: Sequence[str], out: Path, *, resume: bool) -> Start:
    """Returns what a start trains by; ConfigError when it cannot go on from what lies in `out`.

    Without a checkpoint there is nothing to go on from: the run is the one that was named.
    """
    path, tables = run_file.read(name)
    if not (resume and has_checkpoints(out)):
        return Start(run_file.load(name, sets), out, path, tuple(sets), resume=resume)
    held = out / RUN
    if not (held.is_file() and _of_a_learner(out)):
        log.warning("%s has no %s of its own: its run is taken from %s", out, RUN, name)
        return Start(run_file.load(name, sets), out, path, tuple(sets), resume=resume)
    own = _of_its_release(run_file.read(str(held))[1])
    before = run_file.build(own, (), source=RUN)
    if not _same_file(path, held):
        _edit(own, out / _FOLDER / _FILE, tables)
    now = run_file.build(own, sets, source=path.name)
    difference, changes = _changes(before, now)
    if difference is not None:
        raise run_file.ConfigError(
            f"{out} is of another run: {difference} (there = in the folder); train that in another"
            f" folder (--out), or leave {path.name} aside: name {held} as the run"
        )
    return Start(now, out, path, tuple(sets), changes, resume=resume)


def branch(source: Path, sets: Sequence[str], out: Path) -> Start:
    """Returns the start of a run in `out` that goes on from what `source` has trained."""
    before = load_kept(source)
    own = _of_its_release(run_file.read(str(source / RUN))[1])
    now = run_file.build(own, sets, source=RUN)
    difference, changes = _changes(before, now)
    if difference is not None:
        raise run_file.ConfigError(
            f"{source} cannot go on as another run: {difference} (there = in {source}); begin one"
            " with its weights: --set learner.warm_start"
        )
    return Start(now, out, source / RUN, tuple(sets), changes)


def _changes(before: run_file.Run, now: run_file.Run) -> tuple[str | None, tuple[str, ...]]:
    """Returns why `now` cannot go on from what `before` has trained, None = it can; and what is
    not the same."""
    was, is_now = run_file.to_dict(before), run_file.to_dict(now)
    changes = (
        f"{place}: {there} -> {here}" for place, there, here in differences.differences(was, is_now)
    )
    return differences.no_continuation(was, is_now), tuple(changes)


def keep_told(run: run_file.Run, out: Path) -> None:
    """Writes what an evaluator was told of the run, and nothing that it was not told. OSError.

    A file that says more is the learner's, or `headrace train`'s, and stays as it is.
    """
    held, told = out / RUN, shared_run.for_peers(run)
    if held.exists():
        try:
            ours = run_file.read(str(held))[1].keys() == told.keys()
        except run_file.ConfigError:  # of another release, or a person's
            ours = False
        if not ours:
            return
    text = run_file.text(told, head=_TOLD)
    with contextlib.suppress(FileExistsError):  # the learner was quicker
        durable.write(held, text, new=not held.exists())


def has_checkpoints(out: Path) -> bool:
    """Says whether something was trained in this folder, whole or not."""
    folder = out / "checkpoints"
    return folder.is_dir() and any(folder.iterdir())


def ended(out: Path) -> str:
    """Returns why the learner ended, as it says; "" = it has not, or an error has ended it, and it
    will be started again."""
    try:
        reason: str = json.loads((out / "learner.json").read_text())["stop_reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if reason == "failed" else reason


def diverged(start: Start) -> str:
    """Returns, in a line, why this start would be in vain: the latest one diverged, and nothing was
    changed since. "" = it may help."""
    try:
        report = json.loads((start.out / "learner.json").read_text())
        diagnosis = report["diagnosis"] if report["stop_reason"] == "diverged" else ""
        if not diagnosis or load_kept(start.out) != start.run:
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"not started, nothing was changed since: {diagnosis}"


def finished(stop: StopSection, out: Path) -> str:
    """Returns, in a line, why there is nothing to continue: the latest start ended by itself, and
    under these settings it would again. "" = that is not known without its checkpoint."""
    try:
        report = json.loads((out / "learner.json").read_text())
        reason, steps = report["stop_reason"], int(report["trained_steps"])
        means = {**report.get("metrics", {}), "training": report["mean_return"]}
        mean: float | None = report.get("evaluated") if stop.evaluated else means.get(stop.metric)
        seconds = float(report["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    met = {
        "return": reason == "return" and _is_reached(mean, stop.return_),
        "steps": stop.steps is not None and steps >= stop.steps,
        "seconds": stop.seconds is not None and seconds >= stop.seconds and steps > 0,
    }
    if reason not in met or not any(met.values()):
        return ""
    ended = next(name for name in met if met[name])
    return complete(ended, stop, steps=steps, mean=mean, seconds=seconds)


def _is_reached(mean: float | None, wanted: float | None) -> bool:
    return mean is not None and wanted is not None and mean >= wanted


_GOALS = {"training": "mean return", "evaluation": "mean return in an evaluation"}


def complete(
    reason: str, stop: StopSection, *, steps: int, mean: float | None, seconds: float
) -> str:
    """Returns the line that says that the run is complete, and how to go on."""
    done = {
        "return": f"its {_GOALS.get(stop.metric, f'mean {stop.metric}')} is {mean}, stop.return"
        f" {stop.return_}",
        "steps": f"{steps} steps are trained, stop.steps is {stop.steps}",
        "seconds": f"it has run for {seconds:.1f} s, stop.seconds is {stop.seconds}",
    }
    return f"run is complete: {done[reason]}; to go on, raise it: --set stop.{reason}=..."


def _of_its_release(own: Tables) -> Tables:
    """Returns a folder's run with the keys that its release did not know: as they leave things,
    not as the algorithm's table has them for runs that begin today."""
    for place in algorithm_defaults.of(own):
        section, _, key = place.partition(".")
        default = _default(run_file.SECTIONS[section][key])
        own.setdefault(section, {}).setdefault(key, default)
    return own


def _edit(own: Tables, file: Path, named: Tables) -> None:
    """Changes `own` as the named file was changed since it was named last."""
    if not file.is_file():
        log.warning("%s is missing: what was changed in the named run is not known", file)
        return
    _, before = run_file.read(str(file))
    defaults = algorithm_defaults.of(own)
    for section, keys in run_file.SECTIONS.items():
        for key, kind in keys.items():
            default = defaults.get(f"{section}.{key}", _default(kind))
            was, now = (side.get(section, {}).get(key, default) for side in (before, named))
            if toml_text.value(was) == toml_text.value(now):
                continue
            if key in named.get(section, {}):
                own.setdefault(section, {})[key] = now
            else:  # it has its default again
                own.get(section, {}).pop(key, None)


def _default(kind: FieldInfo) -> Any:
    return kind.default if kind.default is not NODEFAULT else kind.default_factory()


def _of_a_learner(out: Path) -> bool:
    """Says whether run.toml is a learner's; False = an evaluator's, which knows half of the run.
    Before there were starts, `headrace train` alone wrote the whole run."""
    return (out / _FOLDER).is_dir() or (out / ".train.lock").exists()


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _trained_at(folder: Path) -> float:
    """Returns when its last checkpoint was written; 0 = it has none."""
    checkpoints = (folder / "checkpoints").glob("*")
    return max((path.stat().st_mtime for path in checkpoints), default=0.0)
