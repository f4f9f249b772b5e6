"""Tests a population: who copies whom, what changes, and that each segment trained by its
settings."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from headrace.launch.cli import main
from headrace.launch.comparison import training
from headrace.launch.config import run_file
from headrace.launch.local import branch
from headrace.launch.process import logs, runtime
from headrace.launch.search import population, search, segments, study
from tests.launch.search.fake_trainings import Fake

WORDS = ("--metric", "return", "--set", "stop.steps=4000", "--every", "1000", "--population", "4")
VARY = ("learner.lr=1e-5..1e-1", "algorithm.gamma=0.9,0.95,0.99", "algorithm.uses=1..8")


def planned(out: Path = Path("x")) -> search.Plan:
    return search.plan(
        "cartpole",
        sets=["stop.steps=4000"],
        vary=VARY,
        metric="return",
        seeds=(),
        out=out,
        budget_s=60.0,
        most_trials=None,
        parallel=1,
    )


PARAMS = {"learner.lr": 1e-3, "algorithm.gamma": "0.95", "algorithm.uses": 4}


def segment(member: int, value: float, **params: Any) -> FrozenTrial:
    trial = create_trial(state=TrialState.COMPLETE, value=value)
    trial.params = {**PARAMS, **params}
    trial.user_attrs = {"folder": f"member-{member}/000", "member": member, "segment": 0}
    return trial


def test_the_worst_goes_on_from_the_best_with_other_settings_and_the_others_as_they_were() -> None:
    values = {0: 10.0, 1: 40.0, 2: 5.0, 3: 30.0}
    ended = {m: segment(m, v, **{"learner.lr": 10.0 ** -(m + 2)}) for m, v in values.items()}
    plan = planned()
    for member in (0, 1, 3):
        kept = segments.decide((member, 1), ended, plan, 4)
        assert kept.parent == f"member-{member}/000" and kept.params == ended[member].params
    copied = segments.decide((2, 1), ended, plan, 4)
    assert copied.parent == "member-1/000"
    assert copied.params["learner.lr"] in (1e-3 * 0.8, 1e-3 * 1.25)
    assert copied == segments.decide((2, 1), ended, plan, 4)


def test_the_first_member_begins_with_the_run_s_own_settings() -> None:
    plan = planned()
    first = segments.decide((0, 0), {}, plan, 4).params
    assert first == {"learner.lr": 3e-3, "algorithm.gamma": "0.99", "algorithm.uses": 1}
    others = [segments.decide((member, 0), {}, plan, 4).params for member in (1, 2, 3)]
    assert len({params["learner.lr"] for params in others}) == 3


def test_the_first_member_is_the_run_as_it_is_until_it_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step size is a schedule, of which a range has no more than the beginning."""
    fake = Fake(lambda run: {**trains(run), "mean_return": 100.0 - run.run.seed})
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path) == 0
    schedule = run_file.load("cartpole").learner.lr
    assert not isinstance(schedule, float)
    by_folder = {trial.user_attrs["folder"]: trial for trial in kept_by(tmp_path)}
    for number in range(4):
        folder = f"member-0/{number:03d}"
        assert run_file.load(str(tmp_path / folder / "run.toml")).learner.lr == schedule
        assert by_folder[folder].params["learner.lr"] == 3e-3
    # The last one is the worst every time, and has what a range may hold.
    copied = run_file.load(str(tmp_path / "member-3/001/run.toml")).learner.lr
    assert by_folder["member-3/001"].user_attrs["parent"] == "member-0/000"
    assert copied in (pytest.approx(3e-3 * 0.8), pytest.approx(3e-3 * 1.25))


@pytest.mark.slow
@given(
    st.floats(1e-5, 1e-1), st.sampled_from(("0.9", "0.95", "0.99")), st.integers(1, 8),
    st.integers(0, 1000),
)  # fmt: skip
def test_what_is_explored_stays_in_its_range(lr: float, gamma: str, uses: int, seed: int) -> None:
    plan = planned()
    params: dict[str, float | str] = {
        "learner.lr": lr,
        "algorithm.gamma": gamma,
        "algorithm.uses": uses,
    }
    found = segments.explore(params, plan, random.Random(seed))
    run_file.load("cartpole", [f"{one.key}={one.text(found[one.key])}" for one in plan.ranges])
    assert 1e-5 <= float(found["learner.lr"]) <= 1e-1 and 1 <= float(found["algorithm.uses"]) <= 8


def trains(run: run_file.Run) -> dict[str, Any]:
    steps, lr = run.stop.steps, run.learner.lr
    away = abs(math.log10(lr if isinstance(lr, float) else 1.0) + 3)
    return {"stop_reason": "steps", "mean_return": 100 - away, "trained_steps": steps}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "start", lambda *_, **__: None)
    monkeypatch.setattr(population, "_LOOK_EVERY_S", 0.0)

    def fake_branch(source: Path, out: Path, *, sets: Any, **_: Any) -> int:
        run = run_file.load(str(source / "run.toml"), sets)
        (out / "checkpoints" / "1").mkdir(parents=True)
        (out / "run.toml").write_text(run_file.effective(run))
        return 0

    monkeypatch.setattr(branch, "branch", fake_branch)


def run(out: Path, *words: str) -> int:
    given = ["search", "cartpole", "--out", str(out), "--budget", "60s", *WORDS]
    return main([*given, *(word for one in VARY for word in ("--vary", one)), *words])


def kept_by(out: Path) -> list[FrozenTrial]:
    of = {**planned(out).of(), "population": {"members": 4, "every": 1000}}
    with study.opened(out, of, less=False, sampler=None) as kept:
        return kept.ended()


def test_every_member_trains_every_segment_and_every_change_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(trains)
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path) == 0
    found = kept_by(tmp_path)
    assert len(found) == len(fake.started) == 16
    assert all("--no-evaluate" in words for words in fake.started)
    by_folder = {trial.user_attrs["folder"]: trial for trial in found}
    copies = 0
    for trial in found:
        attrs = trial.user_attrs
        held = run_file.load(str(tmp_path / attrs["folder"] / "run.toml"))
        assert held.stop.steps == 1000 * (attrs["segment"] + 1)
        if not attrs["as it is"]:
            assert held.learner.lr == pytest.approx(trial.params["learner.lr"], rel=1e-5)
        if attrs["segment"]:
            parent = by_folder[attrs["parent"]]
            assert parent.user_attrs["segment"] == attrs["segment"] - 1
            copied = parent.user_attrs["member"] != attrs["member"]
            copies += copied
            assert (parent.params == trial.params) == (not copied)
    assert copies == 3  # one of four in each segment but the first
    best = max(found, key=lambda trial: trial.value or 0.0)
    written = run_file.load(str(tmp_path / "best.toml"))
    assert written.learner.lr == pytest.approx(best.params["learner.lr"], rel=1e-5)
    assert written.stop == run_file.load("cartpole", ["stop.steps=4000"]).stop
    assert best.user_attrs["folder"] in (tmp_path / "best.toml").read_text().splitlines()[0]
    said = capsys.readouterr().out
    assert "play it: headrace play" in said and "train by its settings: headrace train" in said
    assert "from member-" in (tmp_path / "search.html").read_text()


def test_a_member_without_a_score_yet_is_among_the_worst_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tries a first segment that is too short for a mean return."""

    def early(run: run_file.Run) -> dict[str, Any]:
        first = run.stop.steps == 1000 and run.run.seed == run_file.load("cartpole").run.seed
        return {**trains(run), **({"mean_return": None} if first else {})}

    fake = Fake(early)
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path) == 0
    assert len(fake.started) == 16
    assert "member-0/000 has no return yet" in caplog.text
    by_folder = {trial.user_attrs["folder"]: trial for trial in kept_by(tmp_path)}
    assert by_folder["member-0/000"].state is TrialState.PRUNED
    assert by_folder["member-0/001"].user_attrs["parent"] != "member-0/000"


def test_settings_that_were_silently_undone_fail_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tries a copy that brought the old settings with it: the history tells."""

    def undone(run: run_file.Run) -> dict[str, Any]:
        found = trains(run)
        return {**found, "lr": 0.5} if (run.stop.steps or 0) > 1000 else found

    monkeypatch.setattr(training, "subprocess", Fake(undone))
    assert run(tmp_path) == 1
    assert "lr was 0.5, not" in caplog.text
    assert {trial.state for trial in kept_by(tmp_path) if trial.user_attrs["segment"]} == {
        TrialState.FAIL
    }


def test_settings_that_the_folder_does_not_hold_fail_the_segment(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(run_file.effective(run_file.load("cartpole")))
    (tmp_path / "history.jsonl").write_text(json.dumps({"t": 1, "lr": 0.003}))
    segments.prove_applied(tmp_path, ["algorithm.gamma=0.99"])
    segments.prove_applied(tmp_path, ["learner.lr=[[0, 3e-3], [800_000, 0.0]]"])
    with pytest.raises(segments.NotAppliedError, match=r"gamma was 0.99, not 0.9"):
        segments.prove_applied(tmp_path, ["algorithm.gamma=0.9"])


@pytest.mark.parametrize(
    ("key", "column", "value"),
    [
        ("learner.lr", "lr", 1e-7),
        ("algorithm.entropy_coef", "entropy_coef", 2e-8),
        ("algorithm.clip", "clip", 0.15),
        ("algorithm.kl_coef", "kl_coef", 3e-4),
    ],
)
def test_what_the_history_says_was_used_is_compared_however_small_it_is(
    tmp_path: Path, key: str, column: str, value: float
) -> None:
    """A copied checkpoint may bring the old settings with it, and run.toml has the new ones."""
    run = run_file.load("cartpole", ["learner.lr=0.003", f"{key}={value}"])
    (tmp_path / "run.toml").write_text(run_file.effective(run))
    used = {"lr": 0.003, "entropy_coef": 0.001, "clip": 0.2, column: value * (1 + 4e-6)}
    history = tmp_path / "history.jsonl"
    history.write_text(json.dumps({"t": 1, **used}))
    segments.prove_applied(tmp_path, [f"{key}={value}"])
    history.write_text(json.dumps({"t": 1, **used, column: 1.25 * value}))
    with pytest.raises(segments.NotAppliedError, match=f"{column} was .*, not {value:g}"):
        segments.prove_applied(tmp_path, [f"{key}={value}"])


def test_a_weight_that_adapts_itself_is_none_to_compare(tmp_path: Path) -> None:
    adapts = ["algorithm.kl_coef=0.5", "algorithm.kl_target=0.01", "algorithm.target_interval=4"]
    run = run_file.load("cartpole", adapts)
    (tmp_path / "run.toml").write_text(run_file.effective(run))
    (tmp_path / "history.jsonl").write_text(json.dumps({"t": 1, "lr": 0.003, "kl_coef": 7.0}))
    segments.prove_applied(tmp_path, [])


def test_a_segment_that_trains_is_not_claimed_again(tmp_path: Path) -> None:
    """Whoever trains it: the journal says it, not what a search remembers."""
    plan = planned(tmp_path)
    with study.opened(tmp_path, plan.of(), less=False, sampler=None) as kept:
        both = [population._Population(plan, kept, 4, 1000) for _ in range(2)]
        claims = [both[at % 2]._claim() for at in range(5)]
        assert [claim.folder for claim in claims if claim] == [f"member-{m}/000" for m in range(4)]
        assert claims[4] is None and not both[1]._over()
        assert claims[3] is not None and claims[3].trial is not None
        kept.trials.tell(claims[3].trial, 5.0)
        onwards = both[0]._claim()
        assert onwards is not None and onwards.folder == "member-3/001"


def test_a_segment_that_was_cut_off_goes_on_as_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked:
        def __bool__(self) -> bool:
            return len(fake.started) > 6

    fake = Fake(trains)
    monkeypatch.setattr(training, "subprocess", fake)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "StopRequested", Asked)
        assert run(tmp_path) == 3
    cut = fake.started[-1]
    assert run(tmp_path) == 0
    assert fake.started[7] == cut
    assert len(kept_by(tmp_path)) == 16
    assert all(trial.state is TrialState.COMPLETE for trial in kept_by(tmp_path))
