"""headrace export: the file computes what the network computes, or there is no file."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import headrace
from headrace.launch import cli
from headrace.launch.export import export, parity
from headrace.launch.export.onnx_module import OnnxModule
from headrace.launch.results import loaded_run
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete

INF = float("inf")
# Everything at once: choices that begin at 1, Boxes with and without bounds, whole numbers, a mask,
# and a leaf with the name of an output.
ACTION = Action(
    (
        Part(("move",), "int64", (), (3,), (1,)),
        Part(("grip", "left"), "int8", (2,), (2, 2), (0, 0)),
        Part(("aim",), "float32", (2,), (), (), (-2.0, 0.0), (2.0, 10.0)),
        Part(("free",), "float64", (1,), (), (), (-INF,), (0.5,)),
        Part(("count",), "int64", (1,), (), (), (-3.0,), (3.0,)),
    ),
    squash=True,
)
PARTS = Spaces(
    (
        Leaf("arm.joints", "<f8", (3, 2)),
        Leaf("mode", "<i8", (), (5,)),
        Leaf("value", "<f4", (2,)),
        Leaf("allowed", "|i1", (7,), mask=True),
    ),
    ACTION,
)
RECURRENT = ["model.core=lstm", "model.core_units=6", "model.previous=true"]
NORMALISED = ["model.normalise_obs=true", "model.normalise_returns=true"]


def exported(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["export", str(run), *words]) == 0
    return capsys.readouterr().out


def refused(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["export", str(run), *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("sets", [NORMALISED, RECURRENT])
def test_what_only_the_value_network_saw_is_no_input(
    leave_run: Any, tmp_path: Path, sets: list[str]
) -> None:
    """Nor is there a value: it would be one of nothing."""
    spaces = msgspec.structs.replace(PARTS, critic=("value", "arm.joints"))
    leave_run(tmp_path, spaces, sets)
    found = loaded_run.load(tmp_path)
    module = OnnxModule(found.model, found.spaces)
    inputs, outputs = ([port.name for port in ports] for ports in (module.inputs, module.outputs))
    assert inputs[:2] == ["mode", "allowed"] or inputs[0] == "mode"
    assert not {"value", "obs.value", "arm.joints"} & {*inputs, *outputs}
    given = parity.Parity(found, module)._inputs(4)
    made = module(*(torch.from_numpy(given[name]) for name in inputs))
    assert len(made) == len(outputs)


@pytest.mark.slow
def test_a_plain_policy(leave_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = leave_run(tmp_path)
    file = tmp_path / "elsewhere" / "policy.onnx"
    out = exported(tmp_path, capsys, "--onnx", "--out", str(file))
    assert "1,000 random observations" in out and "obs float32[batch, 4]" in out
    obs = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    action, params, value = session(file).run(["action", "params", "value"], {"obs": obs})
    expected = model({"obs": torch.from_numpy(obs)})
    np.testing.assert_allclose(params, expected.params, atol=1e-5)
    np.testing.assert_allclose(value, expected.value, atol=1e-5)
    np.testing.assert_array_equal(action, expected.params.argmax(-1))
    facts = json.loads((file.parent / "policy.onnx.json").read_text())
    assert (facts["run"], facts["version"]) == ("cartpole", 7)
    assert facts["inputs"] == [
        {"name": "obs", "dtype": "float32", "shape": ["batch", 4], "leaf": "obs"}
    ]
    assert [port["name"] for port in facts["outputs"]] == ["action", "params", "value"]
    whole = onnx.load(file)
    onnx.checker.check_model(whole)
    told = {entry.key: entry.value for entry in whole.metadata_props}
    assert json.loads(told["headrace"]) == facts and told["version"] == "7"
    assert {entry.version for entry in whole.opset_import if not entry.domain} == {18}
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "policy.onnx",
        "policy.onnx.json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("core", ["lstm", "transformer"])
def test_everything_at_once_acts_as_the_policy_does(
    core: str,
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Step by step through an episode, by nothing but the file's own inputs and outputs."""
    monkeypatch.setattr(parity, "OBSERVATIONS", 100)
    sets = [*RECURRENT, *NORMALISED, f"model.core={core}"]
    leave_run(tmp_path, PARTS, sets, change=normalised)
    exported(tmp_path, capsys)
    policy, file = headrace.load_policy(tmp_path), session(tmp_path / "model.onnx")
    names = [output.name for output in file.get_outputs()]
    assert "obs.value" in [given.name for given in file.get_inputs()]
    rng, state = np.random.default_rng(1), None
    carried = {
        "memory": np.zeros((1, policy._policy.memory), np.float32),
        "previous.choices": np.full((1, 3), -1),
        "previous.numbers": np.zeros((1, 4), np.float32),
    }
    reward = 0.0
    for _ in range(12):
        joints, value = 100 + 5 * rng.standard_normal((3, 2)), rng.random(2, np.float32)
        mode, allowed = int(rng.integers(5)), np.array([1, 0, 1, 1, 1, 0, 1], np.int8)
        obs = {"arm": {"joints": joints}, "mode": mode, "value": value, "allowed": allowed}
        action, state = policy.act(obs, state, reward=reward)
        given = {
            "arm.joints": joints[None],
            "mode": np.array([mode]),
            "obs.value": value[None],
            "allowed": allowed[None],
            "previous.reward": np.array([reward], np.float32),
            **carried,
        }
        there = dict(zip(names, file.run(names, given), strict=True))
        assert int(there["action.move"][0]) == action["move"]
        assert there["action.grip.left"][0].tolist() == action["grip"]["left"].tolist()
        assert int(action["grip"]["left"][1]) == 1  # the mask leaves nothing else
        for name in ("aim", "free", "count"):
            np.testing.assert_allclose(there[f"action.{name}"][0], action[name], atol=1e-4)
        carried = {name: there[f"next.{name}"] for name in carried}
        reward = float(rng.uniform(-3, 3))  # beyond 1, too: the file cuts it itself


def normalised(model: Any) -> None:
    model.normaliser.mean.fill_(100.0)
    model.normaliser.var.fill_(25.0)
    model.normaliser.count.fill_(10.0)
    model.returns.mean.fill_(3.0)
    model.returns.std.fill_(2.0)


def moved(model: Any) -> None:
    model.images.mean.fill_(100.3)
    model.images.var.fill_(900.0)
    model.images.count.fill_(10.0)


@pytest.mark.slow
def test_stacked_images_by_any_number_of_rows(
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "OBSERVATIONS", 8)
    spaces = Spaces((Leaf("obs", "|u1", (36, 36), stack=4),), discrete(3))
    nature = ["model.kind=nature", "model.separate=false", "model.normalise_images=true"]
    model = leave_run(tmp_path, spaces, nature, change=moved)
    out = exported(tmp_path, capsys)
    assert "uint8[batch, 4, 36, 36]" in out
    file = session(tmp_path / "model.onnx")
    for rows in (1, 2, 5):
        obs = np.random.default_rng(rows).integers(0, 256, (rows, 4, 36, 36), dtype=np.uint8)
        (params,) = file.run(["params"], {"obs": obs})
        expected = model({"obs": torch.from_numpy(obs)}).params
        np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-4)
    stacked = json.loads((tmp_path / "model.onnx.json").read_text())["inputs"][0]["stacked"]
    assert stacked == "the newest 4 frames, oldest first"


@pytest.mark.slow
def test_a_file_that_differs_is_not_left(
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody changes the weights between writing and checking."""
    leave_run(tmp_path)
    write = export._write

    def spoiled(module: OnnxModule, facts: dict[str, Any], path: Path) -> None:
        write(module, facts, path)
        module.model.value_head.bias.add_(0.01)

    monkeypatch.setattr(export, "_write", spoiled)
    line = refused(tmp_path, capsys)
    assert "differ by" in line and "more than 1e-04" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "run.toml"]


@pytest.mark.parametrize(
    ("output", "wrong"), [("next.memory", 0.01), ("action.aim", 0.5), ("action.move", 1)]
)
def test_every_output_is_compared(
    leave_run: Any, tmp_path: Path, output: str, wrong: float
) -> None:
    """A file that is right but for one output, and one that is all right."""
    leave_run(tmp_path, PARTS, RECURRENT)
    found = loaded_run.load(tmp_path)
    module = OnnxModule(found.model, found.spaces)
    check = parity.Parity(found, module)
    inputs = check._inputs(4)
    assert check._compare(Fake(module, "", 0), inputs)[0] <= 1e-6
    assert check._compare(Fake(module, output, wrong), inputs)[0] > parity.DIFFERENCE


class Fake:
    """An onnxruntime session that is torch itself, but for one output."""

    def __init__(self, module: OnnxModule, output: str, wrong: float) -> None:
        self._module, self._output, self._wrong = module, output, wrong

    def run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
        given = [torch.from_numpy(inputs[port.name]) for port in self._module.inputs]
        with torch.inference_mode():
            outputs: list[Any] = [tensor.numpy().copy() for tensor in self._module(*given)]
        if self._output:
            at = names.index(self._output)
            outputs[at] = np.add(outputs[at], self._wrong)
        return outputs


@pytest.mark.slow
def test_categories_are_taken_as_the_environment_counts_them(
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "OBSERVATIONS", 100)
    leaves = (
        Leaf("one", "<i8", (), (5,), (7,)),
        Leaf("grid", "<i8", (2,), (3, 4), (-2, 10)),
        Leaf("plain", "<i8", (), (3,)),
    )
    model = leave_run(tmp_path, Spaces(leaves, discrete(4)))
    exported(tmp_path, capsys)
    given = {
        "one": np.array([7, 9, 11]),
        "grid": np.array([[-2, 10], [-1, 12], [0, 13]]),
        "plain": np.array([0, 1, 2]),
    }
    counted = {**given, "one": given["one"] - 7, "grid": given["grid"] - np.array([-2, 10])}
    expected = model({name: torch.from_numpy(rows) for name, rows in counted.items()}).params
    (params,) = session(tmp_path / "model.onnx").run(["params"], given)
    np.testing.assert_allclose(params, expected, atol=1e-5)
    inputs = json.loads((tmp_path / "model.onnx.json").read_text())["inputs"]
    assert {port["leaf"]: port.get("start") for port in inputs} == {
        "one": [7],
        "grid": [-2, 10],
        "plain": None,
    }
    found = loaded_run.load(tmp_path)
    drawn = parity.Parity(found, OnnxModule(found.model, found.spaces))._inputs(400)
    assert set(drawn["one"].tolist()) == set(range(7, 12))
    assert set(drawn["grid"][:, 0].tolist()) == {-2, -1, 0}


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("run.toml/x.onnx", "run.toml/x.onnx: {here}/run.toml is no folder"),
        ("run.toml/deeper/x.onnx", "deeper is no folder"),
        ("checkpoints", "checkpoints: it is a folder; name a file"),
        ("m.onnx", "m.onnx.json: it is a folder; name a file"),
    ],
)
def test_a_place_that_cannot_be_had(
    leave_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, words: str
) -> None:
    leave_run(tmp_path)
    (tmp_path / "m.onnx.json").mkdir()
    (tmp_path / "m.onnx").write_text("an older one")
    before = sorted(tmp_path.iterdir())
    line = refused(tmp_path, capsys, "--out", str(tmp_path / out))
    assert words.format(here=tmp_path) in line and "cannot write" in line
    assert (tmp_path / "m.onnx").read_text() == "an older one"
    assert sorted(tmp_path.iterdir()) == before


def test_no_name_is_no_file(
    leave_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(tmp_path)
    assert "it is a folder; name a file" in refused(tmp_path, capsys, "--out", "")


@pytest.mark.parametrize("failing", ["m.onnx", "m.onnx.json"])
@pytest.mark.parametrize("older", [True, False])
def test_both_files_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, older: bool
) -> None:
    kept = {"m.onnx": "old", "m.onnx.json": "old facts"} if older else {}
    for name, text in (kept | {"part": "new", "part.json": "new facts"}).items():
        (tmp_path / name).write_text(text)
    places = [tmp_path / name for name in ("part", "m.onnx", "part.json", "m.onnx.json")]
    rename = Path.rename

    def stuck(self: Path, to: Path) -> Path:
        if to.name == failing:
            raise OSError(1, "Operation not permitted")
        return rename(self, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stuck)
        with pytest.raises(export.ExportError) as caught:
            export._rename_both(*places)
    assert str(caught.value) == f"cannot write {tmp_path / failing}: Operation not permitted"
    left = {path.name: path.read_text() for path in tmp_path.glob("m.*")}
    assert left == kept
    (tmp_path / "part.json").write_text("new facts")
    export._rename_both(*places)
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {"m.onnx": "new", "m.onnx.json": "new facts"}


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    package: str,
) -> None:
    leave_run(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    line = refused(tmp_path, capsys)
    assert f"needs {package}: pip install 'headrace[onnx]'" in line
    assert not (tmp_path / "model.onnx").exists()


def test_numbers_that_are_missing_differ_by_infinity() -> None:
    two = np.array([1.0, INF])
    assert parity.difference(two, two) == 0.0
    assert parity.difference(two, np.array([1.0, np.nan])) == INF
    assert parity.difference(two, np.array([1.0])) == INF
    assert parity.difference(np.array([200.0]), np.array([200.02])) == pytest.approx(1e-4)
