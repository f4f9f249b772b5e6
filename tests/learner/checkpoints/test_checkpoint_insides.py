"""Checkpoints whose hashes are right and whose insides are not: a line, the one before is used."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
import xxhash

from headrace.learner import train_state
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.checkpoint import Checkpoint, CheckpointError
from headrace.learner.checkpoints.manifest import sealed
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from tests.learner.test_train import SPACES, learn

APPO = AlgorithmConfig(name="appo")
State = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A run's folder with its newest checkpoint; its network."""
    folder = tmp_path_factory.mktemp("run")
    pieces, _ = learn(folder, 2, algorithm=APPO)
    return folder / "checkpoints", pieces.model


def forge(path: Path, name: str, body: bytes) -> None:
    """Puts a file into a checkpoint and seals it."""
    (path / name).write_bytes(body)
    files = {
        file.name: {
            "size": file.stat().st_size,
            "xxh3_128": xxhash.xxh3_128_hexdigest(file.read_bytes()),
        }
        for file in path.iterdir()
        if file.name != "manifest.json"
    }
    manifest = sealed(int(path.name[:12]), files)
    (path / "manifest.json").write_bytes(manifest)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("model.safetensors", b"no tensors"),
        ("model.safetensors", b""),
        ("model.safetensors", (2**63).to_bytes(8, "little") + b"{}"),
        ("rng.safetensors", b"\x02\0\0\0\0\0\0\0[]"),
        ("state.msgpack", b""),
        ("state.msgpack", b"\xc1"),
        ("state.msgpack", msgpack.packb([1, 2])),
        ("state.msgpack", b"\x91" * 100_000),
        ("state.msgpack", b"\x81\x80\x01"),
        ("state.msgpack", b"\x81\xa1\xff\x01"),
    ],
)
def test_a_file_that_cannot_be_read(trained: Any, tmp_path: Path, name: str, body: bytes) -> None:
    folder, _ = copied(trained, tmp_path)
    forge(newest(folder), name, body)
    with pytest.raises(CheckpointError, match=f"is damaged: {name} cannot be read") as raised:
        checkpoint.load(newest(folder))
    assert "\n" not in str(raised.value)


def copied(trained: tuple[Path, Model], to: Path) -> tuple[Path, Model]:
    """Two checkpoints alike but for their versions."""
    folder, model = trained
    found = checkpoint.load_latest(folder)
    assert found is not None
    for version in (found.version, found.version + 1):
        state = {**found.state, "progress": {**found.state["progress"], "version": version}}
        checkpoint.save(to, step_version=version, tensors=found.tensors, state=state, keep=2)
    return to, model


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def without(*names: str) -> Callable[[State, State], None]:
    def change(state: State, _tensors: State) -> None:
        *outer, last = names
        for name in outer:
            state = state[name]
        del state[last]

    return change


def state_is(value: Any, *names: str) -> Callable[[State, State], None]:
    def change(state: State, _tensors: State) -> None:
        *outer, last = names
        for name in outer:
            state = state[name]
        state[last] = value

    return change


def tensor_is(value: Any, group: str, name: str) -> Callable[[State, State], None]:
    def change(_state: State, tensors: State) -> None:
        tensors[group][name] = value

    return change


def no_group(group: str) -> Callable[[State, State], None]:
    return lambda _state, tensors: tensors.pop(group)


BIAS = "policy_head.bias"
CASES = {
    "no model": no_group("model"),
    "a tensor of another shape": tensor_is(torch.zeros(7), "model", BIAS),
    "a tensor of another kind": tensor_is(torch.zeros(2, dtype=torch.int64), "model", BIAS),
    "a tensor too many": tensor_is(torch.zeros(7), "model", "extra"),
    "a tensor too few": lambda _state, tensors: tensors["model"].pop(BIAS),
    "weights that are no numbers": tensor_is(torch.tensor([0, torch.nan]), "model", BIAS),
    "no target": no_group("target"),
    "a target of another shape": tensor_is(torch.zeros(7), "target", BIAS),
    "an optimiser of no parameter": tensor_is(torch.zeros(2), "optimiser", "99.exp_avg"),
    "an optimiser without a place": tensor_is(torch.zeros(2), "optimiser", "exp_avg"),
    "an optimiser of another shape": tensor_is(torch.zeros(77), "optimiser", "0.exp_avg"),
    "an optimiser with less": lambda _state, tensors: tensors["optimiser"].pop("0.exp_avg_sq"),
    "moments that are no numbers": tensor_is(torch.tensor(torch.inf), "optimiser", "0.step"),
    "no optimiser": without("optimiser"),
    "optimiser groups": state_is([{"params": [1, 2]}], "optimiser", "groups"),
    "another optimiser": state_is("sgd", "optimiser_name"),
    "no progress": without("progress"),
    "progress of another kind": state_is([1, 2], "progress"),
    "progress in part": without("progress", "lags"),
    "lags that are none": state_is([["a", 1]], "progress", "lags"),
    "steps that are none": state_is("many", "progress", "learner_steps"),
    "the progress of another version": state_is(77, "progress", "version"),
    "returns that are none": state_is(["a"], "progress", "returns"),
    "no windows": without("windows"),
    "windows of another kind": state_is([[1, 2]], "windows"),
    "windows without an end": state_is([[1, 2, [[0, 2**62]]]], "windows"),
    "no dice": no_group("rng"),
    "dice of another kind": tensor_is(torch.zeros(3), "rng", "cpu"),
    "dice of another size": tensor_is(torch.zeros(3, dtype=torch.uint8), "rng", "cpu"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_inside_that_is_not_that_of_the_run(
    trained: Any, tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder, model = copied(trained, tmp_path / "checkpoints")
    train_state.check(
        checkpoint.load(newest(folder)), model, target=True
    )  # before anything is wrong
    bad = checkpoint.load(newest(folder))
    CASES[case](bad.state, bad.tensors)
    checkpoint.save(folder, step_version=bad.version, tensors=bad.tensors, state=bad.state, keep=2)

    def usable(found: Checkpoint) -> None:
        train_state.check(found, model, target=True)

    found = checkpoint.load_latest(folder, usable)
    assert found is not None and found.version == bad.version - 1
    (said,) = caplog.messages
    assert f"{bad.path} is damaged: " in said and "\n" not in said and len(said) < 400
    # Training goes on from the one before, and the bad one is out of the way.
    pieces, _ = learn(tmp_path, 1, algorithm=APPO, resume=found)
    assert pieces.progress.version == bad.version
    assert (folder / f"{bad.path.name}.damaged").is_dir()


def test_when_all_have_bad_insides_a_person_decides(trained: Any, tmp_path: Path) -> None:
    folder, _ = copied(trained, tmp_path)
    other = build(ModelConfig(hidden=(5,)), SPACES, seed=0)
    with pytest.raises(CheckpointError, match="all are damaged"):
        checkpoint.load_latest(folder, lambda found: train_state.check(found, other, target=True))


def test_an_entry_says_where_it_is_missing(trained: Any, tmp_path: Path) -> None:
    folder, _ = copied(trained, tmp_path)
    found = checkpoint.load(newest(folder))
    assert found.entry(str, "optimiser_name") == "adam"
    for kind, names in ((int, ("optimiser_name",)), (str, ("progress", "x")), (str, ("a", "b"))):
        with pytest.raises(CheckpointError, match=rf"is damaged: state.msgpack: {names[0]}"):
            found.entry(kind, *names)
