"""A folder that goes on from another run's checkpoint by other settings; another run's weights."""

import json
import logging
from pathlib import Path

import pytest

from headrace.broker.errors import UserError
from headrace.launch.config import run_file, starts
from headrace.launch.local.branch import branch
from headrace.launch.results import learning_curve
from headrace.launch.roles.learner_resume import checkpoint_of, first_weights
from headrace.launch.roles.options import LearnerOptions
from headrace.learner.checkpoints import checkpoint
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from tests.launch.roles.test_resume import IDENTITY, RUN, save
from tests.learner.test_train import SPACES

SETS = ["model.obs_scale=[]", "model.hidden=[8]", "algorithm.name=impala"]
HISTORY = [{"t": 1.5, "version": 4}, {"t": 2.5, "version": 5}, {"t": 3.5, "version": 6}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A run with the checkpoints 5 and 7."""
    out = tmp_path / "source"
    starts.begin("cartpole", SETS, out, resume=False).keep()
    save(out / "checkpoints", 5)
    save(out / "checkpoints", 7)
    (out / "history.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in HISTORY))
    return out


def begin_with(folder: Path) -> LearnerConfig:
    return LearnerConfig(warm_start=str(folder))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_branch_goes_on_where_the_other_stood(source: Path, tmp_path: Path) -> None:
    before, out = files(source), tmp_path / "deep" / "out"
    assert branch(source, out, version=5, sets=["learner.lr=0.5"]) == 0
    assert files(source) == before
    assert learning_curve.read(out / "history.jsonl") == HISTORY[:2]
    head = (out / "starts" / "001.toml").read_text()
    assert f"goes on from {source}/checkpoints/000000000005" in head
    assert "# learner.lr: [[0, 0.003], [800000, 0.0]] -> 0.5\n" in head
    again = starts.begin(str(out / "run.toml"), (), out, resume=True)
    assert again.changes == () and again.run.learner.lr == 0.5
    options = LearnerOptions("", out, resume=True)
    found = checkpoint_of(again.run, options, IDENTITY, build(RUN.model, SPACES, seed=0))
    assert found is not None and found.version == 5
    there = checkpoint.load(source / "checkpoints" / "000000000005")
    assert found.state == there.state and found.tensors.keys() == there.tensors.keys()


def test_the_newest_is_taken_unless_it_is_damaged(source: Path, tmp_path: Path) -> None:
    branch(source, tmp_path / "a", version=None, sets=[])
    assert [path.name for path in (tmp_path / "a" / "checkpoints").iterdir()] == ["000000000007"]
    (source / "checkpoints" / "000000000007" / "state.msgpack").write_bytes(b"")
    branch(source, tmp_path / "b", version=None, sets=[])
    assert [path.name for path in (tmp_path / "b" / "checkpoints").iterdir()] == ["000000000005"]


@pytest.mark.parametrize(
    ("version", "sets", "said"),
    [
        (6, [], "has no checkpoint of version 6; it has 1, 5, 7"),
        (None, ["model.hidden=[9]"], r"model.hidden: \[8\] there, \[9\] here.*learner.warm_start"),
        (None, ["learner.lrr=1"], "lrr is no key"),
    ],
)
def test_what_cannot_go_on_makes_nothing(
    source: Path, tmp_path: Path, version: int | None, sets: list[str], said: str
) -> None:
    with pytest.raises(run_file.ConfigError, match=said):
        branch(source, tmp_path / "out", version=version, sets=sets)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_a_run_is_not_written_over(source: Path, tmp_path: Path) -> None:
    branch(source, tmp_path / "out", version=5, sets=[])
    before = files(tmp_path / "out")
    with pytest.raises(run_file.ConfigError, match="holds a run already; name another"):
        branch(source, tmp_path / "out", version=7, sets=[])
    assert files(tmp_path / "out") == before


def test_weights_of_an_evaluator_are_no_state_to_go_on_from(source: Path, tmp_path: Path) -> None:
    found = checkpoint.load(source / "checkpoints" / "000000000005")
    state = {"identity": IDENTITY, "score": {"mean": 1.0}}
    checkpoint.save(
        source / "best",
        step_version=6,
        tensors={"model": found.tensors["model"]},
        state=state,
        keep=None,
    )
    with pytest.raises(run_file.ConfigError, match=r"weights alone.*learner.warm_start"):
        branch(source, tmp_path / "out", version=6, sets=[])


def test_layers_that_fit_are_taken_and_the_others_named(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    taken = checkpoint.load(source / "checkpoints" / "000000000007").tensors["model"]
    model = build(RUN.model, SPACES, seed=99)
    first_weights(model, begin_with(source), seed=1)
    assert all(tensor.equal(taken[name]) for name, tensor in model.state_dict().items())
    assert caplog.messages[-1].endswith("checkpoints/000000000007")
    wider = run_file.load("cartpole", [*SETS, "model.hidden=[8, 8]"])
    model = build(wider.model, SPACES, seed=99)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first_weights(model, begin_with(source / "checkpoints" / "000000000005"), seed=1)
    fresh = [name for name, tensor in model.state_dict().items() if tensor.equal(before[name])]
    assert any(name not in fresh for name in before)
    assert "; new are " in caplog.messages[-1]
    assert all(name in caplog.messages[-1] for name in before.keys() - taken.keys())


def test_weights_that_fit_nowhere_are_refused(source: Path, tmp_path: Path) -> None:
    other = build(run_file.load("cartpole", [*SETS, "model.hidden=[9]"]).model, SPACES, seed=1)
    with pytest.raises(UserError, match=r"learner.warm_start: .* no checkpoint yet"):
        first_weights(other, begin_with(tmp_path), seed=1)
    found = checkpoint.load(source / "checkpoints" / "000000000005")
    renamed = {f"their.{name}": tensor for name, tensor in found.tensors["model"].items()}
    path = checkpoint.save(
        tmp_path, step_version=1, tensors={"model": renamed}, state=found.state, keep=None
    )
    with pytest.raises(UserError, match=r"no layer of .* fits this network: "):
        first_weights(other, begin_with(path), seed=1)
