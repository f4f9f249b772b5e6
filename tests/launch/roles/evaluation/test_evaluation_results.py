"""The results that an evaluator keeps: a line for each score, and the best weights."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.actors.envs.make import probe
from headrace.launch.config import run_file, shared_run
from headrace.launch.results.loaded_run import find_checkpoint
from headrace.launch.roles.evaluation.evaluation_results import EvaluationResults
from headrace.learner.checkpoints import checkpoint
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Spaces
from headrace.learner.weights import FlatWeights
from tests.launch.roles.evaluation.test_evaluator import RUN, best, blob, lines


@pytest.fixture(scope="module")
def spaces() -> Spaces:
    return probe(RUN.env)


def line(version: int, mean: float) -> dict[str, Any]:
    return {"version": version, "mean": mean, "low": None, "high": None}


def best_version(out: Path) -> int:
    """As a reader finds it."""
    return find_checkpoint(out, "best").version


def test_the_best_is_only_replaced_by_what_is_no_worse(tmp_path: Path, spaces: Spaces) -> None:
    keep = EvaluationResults(tmp_path, RUN, spaces)
    story = [(1, 5.0, 1), (2, 4.0, 1), (3, 5.0, 3), (4, 7.0, 4), (5, 6.99, 4), (6, -1.0, 4)]
    for version, mean, expected in story:
        keep.add(blob(spaces, version), line(version, mean))
        assert best_version(tmp_path) == expected
    assert best(tmp_path) == [4, 5]
    assert [(entry["version"], entry["mean"]) for entry in lines(tmp_path)] == [
        (version, mean) for version, mean, _ in story
    ]


def test_what_is_kept_can_be_played_again(tmp_path: Path, spaces: Spaces) -> None:
    keep, sent = EvaluationResults(tmp_path, RUN, spaces), blob(spaces, 9, likes=2)
    keep.add(sent, line(9, 1.5))
    found = checkpoint.load(tmp_path / "best" / "000000000009")
    model = build(RUN.model, spaces, seed=7)
    model.load_state_dict(found.tensors["model"])
    assert FlatWeights(model).dump() == bytes(sent.body)
    assert msgspec.convert(found.state["spaces"], Spaces) == spaces
    identity = {"shared": shared_run.shared(RUN), "spaces": spaces.digest()}
    assert found.state["identity"] == identity
    assert found.state["score"] == line(9, 1.5)
    assert shared_run.shared(run_file.load(str(tmp_path / "run.toml"))) == shared_run.shared(RUN)


def test_a_run_file_that_is_there_stays(tmp_path: Path, spaces: Spaces) -> None:
    (tmp_path / "run.toml").write_text("# mine\n")
    EvaluationResults(tmp_path, RUN, spaces)
    assert (tmp_path / "run.toml").read_text() == "# mine\n"


def test_an_evaluator_that_died_goes_on_where_it_was(tmp_path: Path, spaces: Spaces) -> None:
    EvaluationResults(tmp_path, RUN, spaces).add(blob(spaces, 3), line(3, 9.0))
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('{"version": 4, "me')
    again = EvaluationResults(tmp_path, RUN, spaces)
    assert again.highest == 9.0
    again.add(blob(spaces, 5), line(5, 8.0))
    assert best_version(tmp_path) == 3
    assert (tmp_path / "evaluations.jsonl").read_text().splitlines()[-1] == json.dumps(line(5, 8.0))


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_of_the_best_stay_as_was_asked_for(
    tmp_path: Path, spaces: Spaces, keep: int
) -> None:
    evaluate = msgspec.structs.replace(RUN.evaluate, keep=keep)
    run = msgspec.structs.replace(RUN, evaluate=evaluate)
    for version, mean in enumerate((1.0, 5.0, 2.0, 4.0, 3.0, 4.0), start=1):
        EvaluationResults(tmp_path, run, spaces).add(blob(spaces, version), line(version, mean))
    assert best(tmp_path) == {1: [2], 3: [2, 4, 6]}[keep]
    assert best_version(tmp_path) == 2


def test_a_version_that_is_evaluated_again_is_replaced(tmp_path: Path, spaces: Spaces) -> None:
    """After a return to an older checkpoint its weights are others."""
    for mean in (5.0, 7.0):
        EvaluationResults(tmp_path, RUN, spaces).add(blob(spaces, 3), line(3, mean))
    assert best(tmp_path) == [3]
    assert EvaluationResults(tmp_path, RUN, spaces).highest == 7.0


def test_after_a_return_to_an_older_checkpoint_the_older_name_is_the_best(
    tmp_path: Path, spaces: Spaces
) -> None:
    EvaluationResults(tmp_path, RUN, spaces).add(blob(spaces, 60), line(60, 9.0))
    again = EvaluationResults(tmp_path, RUN, spaces)
    again.add(blob(spaces, 55), line(55, 9.5))
    assert best_version(tmp_path) == 55


def test_the_best_of_another_run_is_not_touched(tmp_path: Path, spaces: Spaces) -> None:
    EvaluationResults(tmp_path, RUN, spaces).add(blob(spaces, 3), line(3, 9.0))
    other = msgspec.structs.replace(RUN, model=ModelConfig(hidden=(5,)))
    with pytest.raises(
        run_file.ConfigError, match=r"model.hidden.*choose another folder with --out"
    ):
        EvaluationResults(tmp_path, other, spaces)


@pytest.mark.parametrize(
    "wrong", [{"score": {}}, {"score": 5}, {"score": {"mean": "much"}}, {"identity": {}}]
)
def test_a_best_that_does_not_say_how_good_it_is_is_passed_over(
    tmp_path: Path, spaces: Spaces, wrong: dict[str, Any], caplog: Any
) -> None:
    """Its hashes are right all the same."""
    EvaluationResults(tmp_path, RUN, spaces).add(blob(spaces, 3), line(3, 9.0))
    found = checkpoint.load(tmp_path / "best" / "000000000003")
    checkpoint.save(
        tmp_path / "best", step_version=4, tensors=found.tensors, state=found.state | wrong, keep=2
    )
    assert EvaluationResults(tmp_path, RUN, spaces).highest == 9.0
    (said,) = caplog.messages
    assert "000000000004 is damaged: state.msgpack: " in said and "\n" not in said


def test_a_full_disk_costs_what_could_not_be_written(
    tmp_path: Path, spaces: Spaces, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    keep = EvaluationResults(tmp_path, RUN, spaces)
    keep.add(blob(spaces, 1), line(1, 1.0))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        patched.setattr("os.fsync", full)
        keep.add(blob(spaces, 2), line(2, 2.0))
    assert caplog.text.count("No space left on device") == 2
    assert keep.highest == 1.0
    assert best(tmp_path) == [1]
    keep.add(blob(spaces, 3), line(3, 1.5))  # less than the one that was lost
    assert best(tmp_path) == [1, 3]
    assert [entry["version"] for entry in lines(tmp_path)] == [1, 3]


def test_a_folder_that_cannot_be_written_is_said_at_the_start(
    tmp_path: Path, spaces: Spaces
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(run_file.ConfigError, match="--out"):
        EvaluationResults(tmp_path / "file" / "out", RUN, spaces)
