"""The run that a start trains by, and the files that it leaves for the next one."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config import run_file, shared_run, starts
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.config.run_sections import StopSection
from headrace.launch.config.starts import Start, begin

FILE = """
[run]
name = "mine"
[model]
hidden = [16]
[learner]
lr = 0.001
[stop]
steps = 1000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def start(file: Path, out: Path, *sets: str, resume: bool = True) -> Start:
    """One start that gets as far as a checkpoint."""
    begun = begin(str(file), sets, out, resume=resume)
    begun.keep()
    (out / "checkpoints" / "000000000001").mkdir(parents=True, exist_ok=True)
    return begun


def held(out: Path) -> Run:
    return run_file.load(str(out / "run.toml"))


def test_a_run_goes_on_by_the_settings_of_its_first_start(file: Path, out: Path) -> None:
    first = start(file, out, "learner.lr=1e-5", "algorithm.gamma=0.9", resume=False)
    assert first.changes is None
    again = start(file, out)
    assert again.changes == ()
    assert again.run == first.run == held(out)
    third = start(file, out, "learner.lr=0.0029", "stop.seconds=9.5")
    assert third.changes == ("learner.lr: 1e-05 -> 0.0029", "stop.seconds: not set -> 9.5")
    assert (third.run.learner.lr, third.run.algorithm.gamma) == (0.0029, 0.9)
    assert held(out) == third.run


def test_each_start_leaves_its_run_and_how_it_came_about(file: Path, out: Path) -> None:
    runs = [
        start(file, out, "learner.lr=1e-5", resume=False).run,
        start(file, out, "learner.lr=2e-5").run,
        start(file, out).run,
    ]
    left = sorted(out.glob("starts/[0-9]*.toml"))
    assert [path.name for path in left] == ["001.toml", "002.toml", "003.toml"]
    assert [run_file.load(str(path)) for path in left] == runs
    head = left[1].read_text().splitlines()[:2]
    assert head[0].startswith("# Start 2, 20")
    assert head[0].endswith(f"{file} --set learner.lr=2e-5")
    assert head[1] == "# learner.lr: 1e-05 -> 2e-05"


def test_what_was_changed_in_the_file_since_is_changed(file: Path, out: Path) -> None:
    start(file, out, "learner.lr=1e-5", "algorithm.gamma=0.9", resume=False)
    file.write_text(FILE.replace("steps = 1000", "return = 20.0") + "[checkpoint]\nkeep = 9\n")
    again = start(file, out)
    assert again.changes == (
        "checkpoint.keep: 3 -> 9",
        "stop.return: not set -> 20.0",
        "stop.steps: 1000 -> not set",
    )
    assert again.run.learner.lr == 1e-5  # by --set at first, and the file says what it said then
    file.write_text(FILE.replace("0.001", "0.002"))
    third = start(file, out, "algorithm.gamma=0.95")
    assert third.run.learner.lr == 0.002
    assert (third.run.checkpoint.keep, third.run.stop) == (3, StopSection(steps=1000))
    assert "learner.lr: 1e-05 -> 0.002" in third.changes  # type: ignore[operator]
    assert third.run.algorithm.gamma == 0.95  # --set comes after the file


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["model.hidden=[8]"], ["model.hidden: [16] there, [8] here"]),
        (["algorithm.name=appo"], ['algorithm.name: "impala" there, "appo" here']),
        (["learner.optimiser=rmsprop"], ['learner.optimiser: "adam" there, "rmsprop" here']),
        (
            ["env.kwargs.x=1", "model.core=gru", "learner.lr=0.1"],
            ["env.kwargs: {} there,", 'model.core: "none" there, "gru" here'],
        ),
    ],
)
def test_what_would_be_another_run_is_refused_and_named(
    sets: list[str], words: list[str], file: Path, out: Path
) -> None:
    start(file, out, resume=False)
    before = {path: path.read_bytes() for path in out.rglob("*.toml")}
    with pytest.raises(ConfigError) as refused:
        begin(str(file), sets, out, resume=True)
    for part in (*words, f"{out} is of another run", "--out"):
        assert part in str(refused.value)
    assert "learner.lr" not in str(refused.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*.toml")}


def test_another_run_by_name_is_refused_unless_it_differs_in_what_may_change(out: Path) -> None:
    start(Path("cartpole"), out, "learner.lr=1e-5", resume=False)
    with pytest.raises(ConfigError, match=r'env\.id: "CartPole-v1" there, "Acrobot-v1" here'):
        begin("acrobot", [], out, resume=True)
    assert begin("cartpole", [], out, resume=True).changes == ()


def test_the_folders_own_file_may_be_named(file: Path, out: Path) -> None:
    start(file, out, "learner.lr=1e-5", resume=False)
    file.write_text(FILE.replace("[16]", "[32]"))  # would be another run
    with pytest.raises(ConfigError, match=r"name .*run.toml as the run"):
        begin(str(file), [], out, resume=True)
    again = start(out / "run.toml", out, "learner.lr=2e-5")
    assert again.changes == ("learner.lr: 1e-05 -> 2e-05",)
    # What the file said when it was named last is still known.
    file.write_text(FILE.replace("0.001", "0.5"))
    assert start(file, out).changes == ("learner.lr: 2e-05 -> 0.5",)


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(file: Path, out: Path) -> None:
    begin(str(file), ["learner.lr=1e-5", "model.hidden=[8]"], out, resume=True).keep()
    again = begin(str(file), [], out, resume=True)
    assert (again.changes, again.run) == (None, run_file.load(str(file)))


def test_a_folder_of_an_older_release(file: Path, out: Path, caplog: Any) -> None:
    (out / "checkpoints" / "000000000001").mkdir(parents=True)
    assert begin(str(file), [], out, resume=True).run == run_file.load(str(file))
    assert "has no run.toml of its own: its run is taken from" in caplog.text
    (out / "run.toml").write_text(run_file.effective(run_file.load(str(file), ["learner.lr=1e-5"])))
    # An evaluator wrote it, with defaults for what it was not told.
    assert begin(str(file), [], out, resume=True).run == run_file.load(str(file))
    (out / ".train.lock").touch()
    again = begin(str(file), ["stop.steps=7"], out, resume=True)
    assert "file.toml is missing" in caplog.text
    assert again.changes == ("stop.steps: 1000 -> 7",)
    assert again.run.learner.lr == 1e-5


def test_a_run_goes_on_without_what_its_release_did_not_know(file: Path, out: Path) -> None:
    first = start(file, out, "algorithm.name=impala", resume=False)
    assert first.run.algorithm.drift_limit != 0
    path = out / "run.toml"
    kept = [line for line in path.read_text().splitlines() if "drift_limit" not in line]
    path.write_text("\n".join(kept))
    again = start(file, out)
    assert (again.run.algorithm.drift_limit, again.changes) == (0.0, ())


def test_a_run_that_begins_anew_forgets_the_starts_before(file: Path, out: Path) -> None:
    begin(str(file), [], out, resume=False).keep()
    begin(str(file), ["run.seed=4"], out, resume=False).keep()
    (left,) = out.glob("starts/[0-9]*.toml")
    assert run_file.load(str(left)).run.seed == 4


def test_what_an_evaluator_was_told_is_all_that_it_says(file: Path, out: Path) -> None:
    out.mkdir()
    told = shared_run.from_shared(shared_run.for_peers(run_file.load(str(file), ["run.seed=7"])))
    starts.keep_told(told, out)
    kept = (out / "run.toml").read_text()
    for unknown in ("seed = 1\n", "[learner]", "[stop]", "[broker]", "[checkpoint]", "[security]"):
        assert unknown not in kept
    assert shared_run.for_peers(held(out)) == shared_run.for_peers(told)
    other = shared_run.from_shared({**shared_run.for_peers(told), "evaluate": {"episodes": 3}})
    starts.keep_told(other, out)  # the broker tells another run now
    assert held(out).evaluate.episodes == 3
    # One that says more is the learner's, in a folder that they share; one that nobody can read is
    # nobody's to write over.
    (out / "run.toml").write_text("[of_another_release]\n")
    starts.keep_told(other, out)
    assert (out / "run.toml").read_text() == "[of_another_release]\n"
    whole = start(file, out, resume=False).run
    starts.keep_told(other, out)
    assert held(out) == whole


def test_what_diverged_is_not_repeated_unless_something_was_changed(file: Path, out: Path) -> None:
    first = start(file, out, resume=False)
    (out / "learner.json").write_text('{"stop_reason": "diverged", "diagnosis": "too large"}')
    line = starts.diverged(first)
    assert line == "not started, nothing was changed since: too large"
    assert starts.diverged(begin(str(file), (), out, resume=True)) == line
    assert starts.diverged(begin(str(file), ("learner.lr=1e-5",), out, resume=True)) == ""
    (out / "learner.json").write_text('{"stop_reason": "failed", "diagnosis": null}')
    assert starts.diverged(first) == ""
    (out / "learner.json").unlink()
    assert starts.diverged(first) == ""


@pytest.mark.parametrize(
    ("stop", "report", "complete"),
    [
        ({"steps": 500}, {"stop_reason": "steps"}, "500 steps are trained, stop.steps is 500"),
        ({"steps": 501}, {"stop_reason": "steps"}, ""),
        ({"steps": 501, "seconds": 9.0}, {"stop_reason": "steps"}, "run for 9.5 s"),
        ({"seconds": 9.0}, {"stop_reason": "seconds"}, "to go on, raise it: --set stop.seconds="),
        ({"seconds": 9.0}, {"stop_reason": "seconds", "trained_steps": 0}, ""),
        ({"return_": 20.0}, {"stop_reason": "return"}, "return is 20.5, stop.return 20.0"),
        ({"return_": 21.0}, {"stop_reason": "return"}, ""),
        ({"return_": 20.0}, {"stop_reason": "steps"}, ""),  # a full window is not known
        (
            {"return_": 30.0, "metric": "evaluation"},
            {"stop_reason": "return", "evaluated": 31.0},
            "its mean return in an evaluation is 31.0, stop.return 30.0",
        ),
        ({"return_": 20.0, "metric": "evaluation"}, {"stop_reason": "return"}, ""),
        ({"steps": 400}, {"stop_reason": "stopped"}, ""),  # its checkpoint has to tell
        ({}, {"stop_reason": "steps"}, ""),
    ],
)
def test_a_run_is_complete_when_it_would_end_again(
    stop: dict[str, Any], report: dict[str, Any], complete: str, tmp_path: Path
) -> None:
    whole = {"trained_steps": 500, "mean_return": 20.5, "seconds": 9.5, **report}
    (tmp_path / "learner.json").write_text(str(whole).replace("'", '"'))
    line = starts.finished(StopSection(**stop), tmp_path)
    assert complete in line
    assert bool(line) == bool(complete)
    assert starts.finished(StopSection(**stop), tmp_path / "nowhere") == ""
