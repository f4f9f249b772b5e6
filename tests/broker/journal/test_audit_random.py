"""Random runs, with kills, written by real journals in many segments: the audit says the same as a
slow and obvious count of what was written."""

import itertools
import os
import random
import shutil
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.journal import audit, journal_files
from headrace.broker.journal.journal import Journal
from headrace.broker.protocol.messages import Outcome, ranges
from tests.trainings import trained

Key = tuple[int, int, int]

SAID = (Outcome.TRAINED, Outcome.STALE, Outcome.SHED, Outcome.REJECTED, Outcome.POISON)


@dataclass
class Truth:
    """Everything that was written, event by event."""

    steps: dict[Key, int] = field(default_factory=dict)
    heard: dict[Key, Outcome] = field(default_factory=dict)
    given_up: set[Key] = field(default_factory=set)
    settled: dict[Key, set[Outcome]] = field(default_factory=dict)
    trained: Counter[Key] = field(default_factory=Counter)
    refused: set[Key] = field(default_factory=set)
    in_order: set[int] = field(default_factory=set)  # samplers

    def fate(self, key: Key) -> str:
        if key in self.trained:
            return "trained"
        if key in self.heard:
            return self.heard[key].name.lower()
        if key in self.settled:
            return min(self.settled[key]).name.lower()
        if key in self.refused:
            return "rejected"
        return "abandoned" if key in self.given_up else "in flight"

    def untrue(self) -> int:
        said = {key for key, outcome in self.heard.items() if outcome is Outcome.TRAINED}
        said |= {key for key, outcomes in self.settled.items() if Outcome.TRAINED in outcomes}
        return len(said & self.steps.keys() - self.trained.keys())

    def unfounded(self) -> int:
        return sum(
            outcome is not Outcome.TRAINED and outcome not in self.settled.get(key, ())
            for key, outcome in self.heard.items()
        )

    def ghosts(self) -> int:
        said = {*self.trained, *self.settled, *self.refused, *self.heard}
        return len(said - self.steps.keys())


class Story:
    """Samplers, learners and brokers that do anything at all, right or wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.truth = Truth()
        self.journals: dict[str, Journal] = {}
        self.incs: list[int] = []
        self.next: Counter[tuple[int, int]] = Counter()
        for name in ("learner-1", "broker-1"):
            self.journals[name] = Journal(folder, name)
        for inc in (11, 12, 13):
            self.join(inc)

    def join(self, inc: int) -> None:
        journal = self.journals[f"actor-{inc}"] = Journal(self.folder, f"actor-{inc}")
        journal.joins("actor", inc, f"node {inc}")
        self.incs.append(inc)

    def key(self) -> Key:
        inc, stream = self.rng.choice(self.incs), self.rng.randrange(3)
        most = self.next[inc, stream] + (self.rng.random() < 0.01)
        return inc, stream, self.rng.randrange(max(1, most))

    def keys(self) -> list[Key]:
        """A few neighbours, as a batch or an acknowledgement names them."""
        inc, stream, first = self.key()
        upto = min(first + self.rng.randint(1, 5), max(self.next[inc, stream], first + 1))
        return [(inc, stream, seq) for seq in range(first, upto)]

    def turn(self) -> None:
        rng, truth = self.rng, self.truth
        match rng.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                inc, stream = rng.choice(self.incs), rng.randrange(3)
                if f"actor-{inc}" in self.journals:
                    key = (inc, stream, self.next[inc, stream])
                    truth.steps[key] = rng.randrange(100)
                    self.journals[f"actor-{inc}"].generated(*key, truth.steps[key])
                    self.next[inc, stream] += 1
            case 5 | 6:
                self.hear(self.keys(), rng.choice(SAID))
            case 7 | 8:
                batch = [*self.keys(), *self.keys()]
                truth.trained.update(batch)
                self.journals["learner-1"].trained(batch, rng.randrange(50))
            case 9 | 10:
                self.settle(self.keys(), rng.choice(SAID))
            case 11 if rng.random() < 0.3:
                refused = self.keys()
                truth.refused.update(refused)
                self.journals["learner-1"].rejected(refused)

    def hear(self, keys: list[Key], outcome: Outcome) -> None:
        inc, stream, _ = keys[0]
        journal = self.journals.get(f"actor-{inc}")
        new = [key for key in keys if key in self.truth.steps and key not in self.truth.heard]
        if journal is not None and new:
            self.truth.heard.update(dict.fromkeys(new, outcome))
            spans = [(stream, lo, hi) for lo, hi in ranges([seq for _, _, seq in new])]
            journal.acknowledged(inc, spans, outcome)

    def settle(self, keys: list[Key], outcome: Outcome) -> None:
        new = [key for key in keys if key not in self.truth.settled]
        for key in new:
            self.truth.settled[key] = {outcome}
        inc, stream, _ = keys[0]
        self.journals["broker-1"].settled({(inc, stream, outcome): [seq for _, _, seq in new]})

    def leave(self, inc: int) -> None:
        journal = self.journals.pop(f"actor-{inc}")
        gone = [k for k in self.truth.steps if k[0] == inc and k not in self.truth.heard]
        self.truth.given_up |= set(gone)
        self.truth.in_order.add(inc)
        for stream in range(3):
            seqs = sorted(seq for _, number, seq in gone if number == stream)
            journal.given_up(inc, [(stream, lo, hi) for lo, hi in ranges(seqs)])
        journal.close()

    def kill(self, inc: int) -> None:
        """In the middle of a line that nobody will ever read."""
        torn = self.rng.choice((b"G 1", b"A 11 0 4 9 sta", b""))
        os.write(self.journals.pop(f"actor-{inc}")._fd, torn)


def agrees(account: audit.Account, truth: Truth) -> None:
    fates = Counter(map(truth.fate, truth.steps))
    assert account.generated == len(truth.steps)
    assert account.env_steps == sum(truth.steps.values())
    assert {k: n for k, n in account.outcomes.items() if n} == {
        k: n for k, n in fates.items() if k != "in flight"
    }
    assert account.in_flight == fates["in flight"]
    assert account.twice == sum(n > 1 for k, n in truth.trained.items() if k in truth.steps)
    assert (account.untrue, account.unfounded) == (truth.untrue(), truth.unfounded())
    assert (account.ghosts, account.contradictions, account.damage) == (truth.ghosts(), 0, [])
    for sampler in account.samplers:
        own = [key for key in truth.steps if key[0] == sampler.inc]
        assert sampler.generated == len(own)
        assert sampler.in_flight == sum(truth.fate(key) == "in flight" for key in own)
        assert sampler.ended == (sampler.inc in truth.in_order)


def settle_folding(story: Story) -> None:
    for journal in story.journals.values():
        if journal._folding is not None:
            journal._folding.join()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_a_random_run_adds_up(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of some lines, folded files that are full after some more: all forms at once."""
    rng = random.Random(seed)
    monkeypatch.setattr(journal_files, "LARGE", rng.choice((60, 300, 2000)))
    monkeypatch.setattr(journal_files, "_FULL", rng.choice((100, 1000, 10**6)))
    monkeypatch.setattr(journal_files, "_CHUNK", rng.choice((7, 100, 10**6)))
    story = Story(seed, tmp_path)
    for turn in range(600):
        story.turn()
        if turn in (200, 300):
            story.kill(story.incs[turn // 100 - 2])
            story.join(turn)
        if turn == 400:
            story.leave(13)
    settle_folding(story)
    agrees(audit.read(tmp_path), story.truth)
    assert trained(tmp_path) == sum(story.truth.trained.values())
    for journal in story.journals.values():
        journal.close()
    if journal_files.LARGE < 2000:
        assert list(tmp_path.glob("*-*.*-*.log"))


class Killed(BaseException):
    pass


def fold_until(step: int, folder: Path, before: int, patch: pytest.MonkeyPatch) -> bool:
    """kill -9 before the step-th thing that folding does to the disk; True = it ended first."""
    left = [step]

    def guarded(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **kwargs)

        return call

    with patch.context() as now:
        now.setattr(Path, "open", guarded(Path.open))
        now.setattr(Path, "replace", guarded(Path.replace))
        now.setattr(Path, "unlink", guarded(Path.unlink))
        now.setattr(os, "fsync", guarded(os.fsync))
        try:
            journal_files.fold(folder, "actor-11", before)
        except Killed:
            return False
    return True


@pytest.mark.parametrize("full", [10, 10**6])
def test_folding_may_be_killed_at_any_moment(
    full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "LARGE", 200)
    monkeypatch.setattr(journal_files, "_FULL", full)
    monkeypatch.setattr(journal_files, "fold", lambda *_: None)
    story = Story(5, tmp_path / "whole")
    for _ in range(300):
        story.turn()
    before = story.journals["actor-11"]._segment
    monkeypatch.undo()
    monkeypatch.setattr(journal_files, "_FULL", full)
    assert before > 3
    for step in itertools.count():
        copy = Path(shutil.copytree(story.folder, tmp_path / f"killed-{step}"))
        fold_until(10**6, copy, before - 2, monkeypatch)  # there is a folded file already
        ended = fold_until(step, copy, before, monkeypatch)
        agrees(audit.read(copy), story.truth)
        # A disk that would not and then would: the next attempt goes on from there.
        assert fold_until(10**6, copy, before, monkeypatch)
        agrees(audit.read(copy), story.truth)
        parts = journal_files.journals(copy)["actor-11"].segments
        assert [part.folded for part in parts][-2:] == [True, False]
        if ended:
            break
    assert step > 5
    for journal in story.journals.values():
        journal.close()


def test_a_journal_that_is_folded_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit has seen the names of files that are gone when it opens them."""
    for number, path in enumerate(("actor-1.log", "actor-1.1.log", "actor-1.2.log")):
        (tmp_path / path).write_text(f"G 1 0 {number} 8\n")
    (tmp_path / "learner-1.log").write_text("T 1 0 0 1\nT 1 0 1 1\n")
    (tmp_path / "learner-1.1.log").write_text("T 1 0 2 2\n")
    real = journal_files.journals

    def then_folded(folder: Path) -> Any:
        found = real(folder)
        monkeypatch.setattr(journal_files, "journals", real)
        journal_files.fold(folder, "actor-1", 2)
        journal_files.fold(folder, "learner-1", 1)
        return found

    for read, expected in ((trained, 3), (lambda folder: audit.read(folder).generated, 3)):
        monkeypatch.setattr(journal_files, "journals", then_folded)
        assert read(tmp_path) == expected
    assert audit.read(tmp_path).env_steps == 24
    assert len(list(tmp_path.glob("actor-*"))) == 2


def test_a_look_at_a_folder_is_no_single_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was folded while its folder was listed: neither it nor the folded one was seen."""
    for number in range(3):
        journal_files.path(tmp_path, "actor-1", number).write_text(f"G 1 0 {number} 8\n")
    real, looks = journal_files.journals, itertools.count()

    def half(folder: Path) -> Any:
        found = real(folder)
        if next(looks) == 1:
            found["actor-1"].missing.append(1)
            del found["actor-1"].segments[1]
        return found

    monkeypatch.setattr(journal_files, "journals", half)
    account = audit.read(tmp_path)
    assert (account.generated, account.damage) == (3, [])


def test_an_audit_beside_a_journal_that_is_written_and_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it looks, it sees a moment of the run: nothing missing, nothing untrue."""
    monkeypatch.setattr(journal_files, "LARGE", 300)
    monkeypatch.setattr(journal_files, "_FULL", 600)
    actor, learner = Journal(tmp_path, "actor-1"), Journal(tmp_path, "learner-1")
    broker = Journal(tmp_path, "broker-1")
    real, looks = journal_files.lines, 0

    def lines(segment: Any) -> Any:
        """While the audit reads a file, the run goes on."""
        nonlocal looks
        if threading.current_thread() is threading.main_thread() and looks < 400:
            looks += 1
            go_on(looks)
        return real(segment)

    def go_on(seq: int) -> None:
        actor.generated(1, 0, seq, 1)
        learner.trained([(1, 0, seq)], seq)
        broker.settled({(1, 0, Outcome.TRAINED): [seq]})
        actor.acknowledged(1, [(0, seq, seq + 1)], Outcome.TRAINED)

    go_on(0)
    monkeypatch.setattr("headrace.broker.journal.journal_files.lines", lines)
    while looks < 400:
        account = audit.read(tmp_path)
        assert account.exact(), account
        assert account.samplers[0].in_flight <= account.generated
    for journal in (actor, learner, broker):
        journal.close()
