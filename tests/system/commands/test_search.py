"""`headrace search` with real trainings: kills, Ctrl-C, populations; explain of what they left."""

import re
import signal
import warnings

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from headrace.launch.config import run_file
from headrace.launch.results import learning_curve
from tests.system.conftest import PATIENCE_S, Place, until

# One group: a mean return waits for the first episode of each environment, and another sampler may
# not have played so far within so few steps.
ONE = ("actor.count=1", "actor.groups=1", "stop.steps=2000")
SCORE = ("--metric", "return", "--budget", "10m", *(word for one in ONE for word in ("--set", one)))


def test_the_best_of_some_trials_is_a_run_that_trains(place: Place) -> None:
    words = ("search", place.run, *SCORE, "--vary", "learner.lr=1e-4..1e-2", "--seeds", "1,2")
    search = place.headrace(*words, "--trials", "2", "--out", str(place.out))
    assert search.ends() == 0, search.text()
    assert "best: trial" in search.text()
    assert {path.parent.name for path in place.out.glob("*/*/summary.json")} == {"seed-1", "seed-2"}
    assert "<svg" in (place.out / "search.html").read_text()
    best = place.headrace(
        "train", str(place.out / "best.toml"), "--stop-steps", "500", "--out", str(place.out / "b")
    )
    assert best.ends() in (0, 3), best.text()
    told = place.headrace("explain", str(place.out / "b"))
    assert told.ends() == 0 and "learner   " in told.text()
    place.nothing_is_left()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_what_was_cut_off_is_gone_on_with(place: Place, how: str) -> None:
    words = ("search", place.run, *SCORE, "--vary", "learner.lr=1e-4..1e-2", "--trials", "1")
    search = place.headrace(*words, "--out", str(place.out))
    until(lambda: list(place.out.glob("trial-0000/seed-1/history.jsonl")), "a training")
    search.signal(signal.Signals[how])
    assert search.ends() != 0
    place.nothing_is_left(timeout_s=PATIENCE_S)
    again = place.headrace(*words, "--out", str(place.out))
    assert again.ends() == 0, again.text()
    assert "goes on with 1 trials" in again.text()
    assert [path.name for path in place.out.glob("trial-*")] == ["trial-0000"]
    place.nothing_is_left()


@pytest.mark.parametrize("how", [("--trials", "4"), ("--population", "4", "--every", "1000")])
def test_searches_on_one_folder_train_different_trials(place: Place, how: tuple[str, ...]) -> None:
    words = ("search", place.run, *SCORE, "--vary", "learner.lr=1e-4..1e-2", "--parallel", "1")
    both = [place.headrace(*words, *how, "--out", str(place.out)) for _ in range(2)]
    for search in both:
        assert search.ends(timeout_s=4 * PATIENCE_S) == 0, search.text()
    with warnings.catch_warnings():  # of a part of Optuna that is new
        warnings.simplefilter("ignore")
        storage = JournalStorage(JournalFileBackend(str(place.out / "study.journal")))
        trials = optuna.load_study(study_name="search", storage=storage).trials
    folders = [trial.user_attrs["folder"] for trial in trials]
    assert len(set(folders)) == len(folders) == (4 if "--trials" in how else 8)
    # A first segment may be too short for a score.
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len({trial.user_attrs["owner"] for trial in trials}) == 2
    trained = [re.findall(r"(?:trial (\d+)|(member-\S+)) trains", s.text()) for s in both]
    assert all(trained) and sum(map(len, trained)) == len(trials)
    assert (place.out / "best.toml").exists()
    place.nothing_is_left()


def test_what_a_killed_search_trained_of_a_population_another_goes_on_with(place: Place) -> None:
    words = ("search", place.run, *SCORE, "--vary", "learner.lr=1e-4..1e-2", "--parallel", "1")
    how = ("--population", "2", "--every", "2000", "--out", str(place.out))
    killed = place.headrace(*words, *how)
    first = killed.says(r"(member-\d/000) trains")[1]
    other = place.headrace(*words, *how)
    other.says(r"member-\d/000 trains")
    killed.signal(signal.SIGKILL)
    assert other.ends(timeout_s=2 * PATIENCE_S) == 0, other.text()
    assert f"{first} trains" in other.text()
    assert {path.parent.parent.name for path in place.out.glob("*/000/summary.json")} == {
        "member-0",
        "member-1",
    }
    place.nothing_is_left()


def test_a_population_copies_checkpoints_and_trains_by_what_it_was_given(place: Place) -> None:
    """Tries a setting that checkpoints hold, too: a weight that adapts itself begins anew where it
    was changed, and goes on where it was not."""
    words = ("search", place.run, *SCORE, "--population", "2", "--every", "1000", "--out")
    vary = ("--vary", "learner.lr=1e-4..1e-2", "--vary", "algorithm.kl_coef=20..200")
    adapts = ("name=appo", "kl_coef=60.0", "kl_target=0.1", "uses=1", "target_interval=4")
    sets = (word for one in adapts for word in ("--set", f"algorithm.{one}"))
    search = place.headrace(*words, str(place.out), *vary, *sets)
    assert search.ends() == 0, search.text()
    second = [place.out / f"member-{member}/001" for member in (0, 1)]
    parents = [(path / "starts/001.toml").read_text() for path in second]
    # Of two the worse goes on from the better, whose folder both name.
    first = {f"member-{member}/000" for member in (0, 1)}
    named = [next(name for name in first if name in text) for text in parents]
    assert named[0] == named[1]
    rates = {run_file.load(str(path / "run.toml")).learner.lr for path in second}
    assert len(rates) == 2
    # From what was set it moves by these factors alone, and a change is one of 4 / 5 or 5 / 4.
    moves = [1.5**up * 0.5**down for up in range(12) for down in range(12)]
    for path in second:
        set_to = run_file.load(str(path / "run.toml")).algorithm.kl_coef
        used = learning_curve.last(path / "history.jsonl", "kl_coef")["kl_coef"]
        assert any(used == pytest.approx(set_to * move, rel=1e-5) for move in moves)
    place.nothing_is_left()
