"""Tests the journal of a search: killed owners, torn lines, other searches, searches together."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from headrace.launch.config import run_file
from headrace.launch.search import study

OF = {"learner": {"lr": 0.1}, "search": {"metric": "return", "seeds": [1]}}
JOURNAL = "study.journal"


def opened(out: Path) -> contextlib.AbstractContextManager[study.Study]:
    return study.opened(out, OF, less=False, sampler=optuna.samplers.RandomSampler(seed=1))


def begin(kept: study.Study) -> optuna.trial.Trial:
    trial = kept.begin()
    trial.suggest_float("learner.lr", 0.1, 1.0)
    return trial


# A search of another process, killed while it trains.
KILLED = """
import os, sys
from pathlib import Path
from headrace.launch.search import study
with study.opened(Path(sys.argv[1]), {of}, less=False, sampler=None) as kept:
    trial = kept.begin()
    trial.suggest_float("learner.lr", 0.1, 1.0)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    script = KILLED.format(of=OF)
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -9
    yield tmp_path


@pytest.mark.processes
def test_what_a_killed_search_was_training_is_begun_again_as_it_was(killed: Path) -> None:
    with opened(killed) as kept:
        (left,) = kept.trials.get_trials()
        assert left.state is TrialState.RUNNING
        assert kept.take_over(again=True) == 1
        trial = begin(kept)
        assert trial.params == left.params and trial.number == 1
        assert trial.user_attrs["folder"] == left.user_attrs["folder"] == "trial-0000"
        kept.trials.tell(trial, 5.0)
        assert [t.number for t in kept.ended()] == [1]
    assert not list(killed.glob(".search-*.lock"))


@pytest.mark.processes
def test_what_a_search_trains_that_lives_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        begin(one)
        assert one.take_over(again=True) == 0
        # Record locks are a process's: that another process holds it is tried by one.
        probe = (
            "import sys; from pathlib import Path; from headrace.launch.search import study\n"
            f"with study.opened(Path(sys.argv[1]), {OF}, less=False, sampler=None) as kept:\n"
            "    print(kept.take_over(again=True))"
        )
        words = [sys.executable, "-c", probe, str(tmp_path)]
        assert subprocess.check_output(words, text=True).strip() == "0"


def test_a_torn_last_line_is_cut_off_and_the_rest_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.trials.tell(begin(kept), 3.0)
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code": 4, "wor')
    with opened(tmp_path) as kept:
        kept.trials.tell(begin(kept), 4.0)
        best = kept.best()
        assert best is not None and best.value == 4.0 and len(kept.ended()) == 2


@pytest.mark.slow
def test_a_lock_that_a_kill_left_on_the_journal_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_LOCK_LEFT_S", 3)
    with opened(tmp_path) as kept:
        (tmp_path / f"{JOURNAL}.lock").touch()
        del kept
    with opened(tmp_path) as kept:
        assert kept.best() is None


@pytest.mark.parametrize("content", [b"no journal\n", b"[]\n", b'{"op_code": 99}\n', b"\xff\xfe\n"])
def test_what_is_no_journal_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(content * 2)
    complaint = "is no journal of a search"
    with pytest.raises(run_file.ConfigError, match=complaint) as raised, opened(tmp_path):
        pass
    assert raised.value.__cause__ is None  # whose traceback would be shown


def test_another_search_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    other = {**OF, "search": {"metric": "evaluation", "seeds": [1]}}
    complaint = 'search.metric is "return" there, and "evaluation" here'
    with (
        pytest.raises(run_file.ConfigError, match=complaint),
        study.opened(tmp_path, other, less=False, sampler=None),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(run_file.ConfigError, match="cannot write"), opened(tmp_path / "file"):
        pass


def test_searches_that_share_a_folder_train_different_trials(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        one.trials.enqueue_trial({"learner.lr": 0.5})
        folders = [begin(kept).user_attrs["folder"] for kept in (one, other, one, other)]
        assert folders == ["trial-0000", "trial-0001", "trial-0002", "trial-0003"]
