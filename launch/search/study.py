"""The trials of a search, kept by Optuna in OUT/study.journal: a file, that several searches on
several machines may share.

A search that was killed leaves a trial that nobody trains; the next one finds its owner's lock free
and goes on with it. A line that was being written then is cut off.
"""

import contextlib
import logging
import os
import secrets
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from headrace.launch.config import differences, run_file
from headrace.launch.process import folder_lock

log = logging.getLogger(__name__)

_NAME = "search"  # of the study in its journal
_LOCK_LEFT_S = 10  # after which a lock on the journal is a killed process's
_STARTS_WITHIN_S = 60  # a trial without an owner is one that a search begins, or was killed with
_ALONE_WITHIN_S = 60.0  # a search decides in a moment; a machine may be busy
_COMPARED_WITH = 4  # trials at least; with fewer none is given up
OWNER, FOLDER = "owner", "folder"


class _BelowMedian(optuna.pruners.BasePruner):
    """Gives up what is below the median of all that came as far. Those given up there count, too:
    among the others alone the median would rise until hardly any went on."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Tells whether the trial is given up for what it reported last."""
        at = trial.last_step
        if at is None:
            return False
        others = [
            one.intermediate_values[at]
            for one in study.get_trials(deepcopy=False)
            if at in one.intermediate_values and one.number != trial.number
        ]
        enough = len(others) >= _COMPARED_WITH
        return enough and trial.intermediate_values[at] < statistics.median(others)


@dataclass(frozen=True, slots=True)
class Study:
    """Holds the trials, and this search's name among those that share them."""

    trials: optuna.Study
    owner: str
    out: Path

    def begin(self) -> optuna.trial.Trial:
        """Begins a trial, one that waits if there is one; its folder is new, or the waiting
        one's."""
        trial = self.trials.ask()
        trial.set_user_attr(OWNER, self.owner)
        if FOLDER not in trial.user_attrs:
            trial.set_user_attr(FOLDER, f"trial-{trial.number:04d}")
        return trial

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lets one search at a time decide what is begun next, or what is the best."""
        with folder_lock.lock_folder(self.out, "claims", patience_s=_ALONE_WITHIN_S):
            yield

    def waits(self) -> bool:
        """Tells whether there is a trial that waits to be begun."""
        return bool(self.trials.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def running(self) -> list[FrozenTrial]:
        """Returns the trials that have begun, whichever search trains them."""
        return self.trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def best(self) -> FrozenTrial | None:
        """Returns the best trial that got there; None = none has yet."""
        with contextlib.suppress(ValueError):
            return self.trials.best_trial
        return None

    def ended(self) -> list[FrozenTrial]:
        """Returns the trials that are over, whatever their end; of those that went on in one folder
        the newest."""
        over = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        found = self.trials.get_trials(deepcopy=False, states=over)
        newest = {trial.user_attrs.get(FOLDER, trial.number): trial for trial in found}
        return sorted(newest.values(), key=lambda trial: trial.number)

    def take_over(self, *, again: bool) -> int:
        """Ends trials whose search has ended without them; returns how many. `again`: they wait to
        be begun again, in their folders."""
        dead = [trial for trial in self.running() if not self._alive(trial)]
        for trial in dead:
            try:
                self.trials.tell(trial.number, state=TrialState.FAIL)
            except (RuntimeError, ValueError):  # another search was quicker
                continue
            kept = {key: held for key, held in trial.user_attrs.items() if key != OWNER}
            if again and FOLDER in kept:
                # A trial that was cut off so early has not asked for all that it was given.
                given = trial.system_attrs.get("fixed_params", trial.params)
                self.trials.enqueue_trial(given, user_attrs=kept)
        return len(dead)

    def _alive(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get(OWNER)
        if not isinstance(owner, str):
            began = trial.datetime_start
            return began is not None and time.time() - began.timestamp() < _STARTS_WITHIN_S
        lock = self.out / f".{owner}.lock"
        if owner == self.owner or not lock.exists():
            return owner == self.owner
        try:
            with folder_lock.lock_folder(self.out, owner, patience_s=0):
                lock.unlink(missing_ok=True)
        except folder_lock.FolderLockError:
            return True
        return False


@contextlib.contextmanager
def opened(
    out: Path, of: Mapping[str, Any], *, less: bool, sampler: optuna.samplers.BaseSampler | None
) -> Iterator[Study]:
    """Opens the study of `of`, the run and what else trials depend on; ConfigError where the folder
    holds another, or none that can be read."""
    owner = f"search-{secrets.token_hex(4)}"
    with folder_lock.lock_folder(out, owner):
        try:
            yield Study(_load(out / "study.journal", of, less=less, sampler=sampler), owner, out)
        finally:
            (out / f".{owner}.lock").unlink(missing_ok=True)


def _load(
    path: Path, of: Mapping[str, Any], *, less: bool, sampler: optuna.samplers.BaseSampler | None
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = str(path.absolute())
    lock = JournalFileOpenLock(place, grace_period=_LOCK_LEFT_S)
    try:
        _cut(path, lock)
        storage = JournalStorage(JournalFileBackend(place, lock_obj=lock))
        study = optuna.create_study(
            storage=storage,
            study_name=_NAME,
            load_if_exists=True,
            direction="minimize" if less else "maximize",
            sampler=sampler,
            pruner=_BelowMedian(),
        )
    except OSError as error:
        raise run_file.ConfigError(f"cannot write {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AssertionError):
        raise run_file.ConfigError(
            f"{path} is no journal of a search, or is damaged; choose another folder with --out"
        ) from None
    kept = study.user_attrs.get("of")
    if kept is None:
        study.set_user_attr("of", of)
    elif difference := next(differences.differences(kept, of), None):
        raise run_file.ConfigError(
            f"{path} is another search's: {difference.place} is {difference.there} there, and"
            f" {difference.here} here; choose another folder with --out"
        )
    return study


def _cut(path: Path, lock: JournalFileOpenLock) -> None:
    """Cuts off a last line that was not written to its end."""
    if not path.exists():
        return
    lock.acquire()
    try:
        with path.open("r+b") as journal:
            held = journal.read()
            whole = held.rfind(b"\n") + 1
            if whole < len(held):
                log.warning("%s: its last line is torn, and is cut off", path)
                journal.truncate(whole)
                os.fsync(journal.fileno())
    finally:
        lock.release()
