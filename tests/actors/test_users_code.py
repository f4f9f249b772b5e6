"""The place in the user's own code, and nothing of ours before it."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.actors import users_code
from headrace.actors.envs.convert import EnvError
from headrace.actors.users_code import traceback_of
from headrace.launch.config.run_file import ConfigError
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Leaf, Spaces, discrete


def code(name: str, text: str) -> Callable[[], None]:
    """Function `run` of a module called so."""
    module = types.ModuleType(name)
    exec(compile(text, f"/somewhere/{name}.py", "exec"), vars(module))
    run: Callable[[], None] = module.run
    return run


def caught(call: Callable[[], None]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Exception:
    """An error of theirs that our code has met and said in its words."""
    # These tests are nobody's code: they play the part of ours.
    monkeypatch.setattr(users_code, "_NOT_THEIRS", frozenset({"tests", "headrace", "torch"}))
    run = code("maze", "def run():\n    wall()\n\ndef wall():\n    raise KeyError('door')\n")
    try:
        run()
    except KeyError as error:
        try:
            raise EnvError("maze: cannot be made") from error
        except EnvError as said:
            return said
    raise AssertionError


def test_it_begins_with_their_first_frame(theirs: Exception) -> None:
    first, at, *_, last = traceback_of(theirs).splitlines()
    assert first == "Traceback (most recent call last):"
    assert at == '  File "/somewhere/maze.py", line 2, in run'
    assert last == "KeyError: 'door'"


def test_of_a_group_it_is_the_first(theirs: Exception) -> None:
    assert traceback_of(ExceptionGroup("x", [ExceptionGroup("y", [theirs])])) == traceback_of(
        theirs
    )


def test_where_they_have_no_part_there_is_none(theirs: Exception) -> None:  # noqa: ARG001
    assert traceback_of(caught(code("torch", "def run():\n    1 / 0\n"))) == ""
    assert traceback_of(None) == traceback_of(ValueError("never raised")) == ""


def test_what_they_called_stands_below(theirs: Exception) -> None:  # noqa: ARG001
    inner = code("torch", "def run():\n    raise RuntimeError('shapes')\n")
    outer = code("maze", "def run():\n    inner()\n")
    outer.__globals__["inner"] = inner
    text = traceback_of(caught(outer))
    assert text.index("/somewhere/maze.py") < text.index("/somewhere/torch.py")


def test_another_process_has_told_it() -> None:
    assert traceback_of(EnvError("maze", traceback="Traceback\nx\n")) == "Traceback\nx\n"


@pytest.mark.parametrize(("where", "line"), [("make", 3), ("forward", 7)])
def test_of_an_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, line: int
) -> None:
    """Whether it cannot be made or cannot read."""
    lines = [
        "import torch",
        "def make(*_):",
        "    return Wall()",
        "class Wall(torch.nn.Module):",
        "    units = 2",
        "    def forward(self, obs):",
        "        return obs['door']",
    ]
    if where == "make":
        lines[2] = "    raise KeyError('door')"
    (tmp_path / "their_wall.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_wall", raising=False)
    monkeypatch.setattr(users_code, "_NOT_THEIRS", users_code._NOT_THEIRS | {"tests"})
    spaces = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
    with pytest.raises(ValueError, match="KeyError: 'door'") as caught:
        build(ModelConfig(kind="their_wall:make"), spaces, seed=1)
    own = ConfigError(str(caught.value))
    own.__cause__ = caught.value
    first = traceback_of(own).splitlines()[1]
    assert first == f'  File "{tmp_path}/their_wall.py", line {line}, in {where}'


def test_a_very_long_one_keeps_its_end(theirs: Exception) -> None:  # noqa: ARG001
    text = traceback_of(caught(code("maze", f"def run():\n    raise KeyError('{'x' * 20000}end')")))
    assert len(text) == 8192 and text.endswith("end'\n")
