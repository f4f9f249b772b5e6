"""Which checkpoint a learner goes on from, and which it refuses."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config import run_file, shared_run
from headrace.launch.roles.learner_resume import checkpoint_of, restore_progress
from headrace.launch.roles.options import LearnerOptions
from headrace.learner.checkpoints import checkpoint
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.progress import Progress
from tests.learner.test_train import SPACES, learn

RUN = run_file.load("cartpole", ["model.obs_scale=[]", "model.hidden=[8]", "algorithm.name=impala"])
IDENTITY = {"shared": shared_run.shared(RUN), "spaces": SPACES.digest()}


@pytest.fixture
def model() -> Model:
    return build(RUN.model, SPACES, seed=0)


def save(folder: Path, version: int, **state: Any) -> None:
    """What a learner would leave, but for `state`."""
    if not folder.exists():
        learn(folder.parent, 1)
    found = checkpoint.load_latest(folder)
    assert found is not None
    held = {
        **found.state,
        "identity": IDENTITY,
        "progress": {**found.state["progress"], "version": version},
        **state,
    }
    checkpoint.save(folder, step_version=version, tensors=found.tensors, state=held, keep=9)


def resumed(out: Path, model: Model, run: run_file.Run = RUN) -> int | None:
    identity = {"shared": shared_run.shared(run), "spaces": SPACES.digest()}
    found = checkpoint_of(run, LearnerOptions("", out, resume=True), identity, model)
    return None if found is None else found.version


@pytest.mark.slow
def test_the_newest_that_is_whole_inside_too(tmp_path: Path, model: Model) -> None:
    assert resumed(tmp_path, model) is None
    save(tmp_path / "checkpoints", 5)
    save(tmp_path / "checkpoints", 6)
    assert resumed(tmp_path, model) == 6
    save(tmp_path / "checkpoints", 7, windows="none")
    save(tmp_path / "checkpoints", 8, identity={"shared": 5})
    assert resumed(tmp_path, model) == 6


def test_one_of_another_run_is_not_passed_over(tmp_path: Path, model: Model) -> None:
    """Nor called damaged where its network is another, too."""
    save(tmp_path / "checkpoints", 5)
    other = run_file.load("cartpole", ["model.obs_scale=[]", "model.hidden=[9]"])
    with pytest.raises(run_file.ConfigError, match=r"another run: model\.hidden: \[8\] there"):
        resumed(tmp_path, build(other.model, SPACES, seed=0), other)
    save(tmp_path / "checkpoints", 6, identity={**IDENTITY, "spaces": "others"})
    with pytest.raises(run_file.ConfigError, match="other spaces"):
        resumed(tmp_path, model)
    save(tmp_path / "checkpoints", 7, optimiser_name="sgd")
    with pytest.raises(run_file.ConfigError, match="trained by sgd"):
        resumed(tmp_path, model)
    save(tmp_path / "checkpoints", 8, identity={"shared": {}, "spaces": ""})
    with pytest.raises(run_file.ConfigError, match="another run: env"):
        resumed(tmp_path, model)


def test_an_adapted_weight_goes_on_unless_another_one_was_set(tmp_path: Path) -> None:
    """Holds for whoever changes it: --resume --set, headrace branch, a population."""
    save(tmp_path / "checkpoints", 5)
    found = checkpoint.load_latest(tmp_path / "checkpoints")
    assert found is not None
    found.state["progress"]["kl_coef"] = 7.5
    progress = Progress()
    restore_progress(progress, found, RUN)
    assert progress.kl_coef == 7.5 and progress.version == 5
    restore_progress(progress, found, run_file.load("cartpole", ["algorithm.kl_coef=0.3"]))
    assert progress.kl_coef is None and progress.version == 5
