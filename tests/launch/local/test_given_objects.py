"""Classes and functions given where a run names code: named, or handed over by value."""

import linecache
import sys
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_env
from headrace.launch.config import starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.local import run_folder
from headrace.launch.local.given_objects import GivenObjects
from headrace.learner.models import named_code


def local_class(height: float) -> type[gymnasium.Env[Any, Any]]:
    class Higher(CartPoleEnv):
        tall = height

    return Higher


@pytest.fixture
def given() -> GivenObjects:
    return GivenObjects()


def found(given: GivenObjects, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a process of the run finds under the name."""
    with given.written() as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        return named_code.imported(name)


def test_what_a_module_holds_is_only_named(given: GivenObjects) -> None:
    named = given.named({"env": {"id": CartPoleEnv}, "stop_steps": 5})
    assert named == {
        "env": {"id": "gymnasium.envs.classic_control.cartpole:CartPoleEnv"},
        "stop_steps": 5,
    }
    with given.written() as environment:
        assert environment == {}


def test_other_objects_are_found_by_value(
    given: GivenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = given.named(
        {
            "env": {"id": local_class(2.0), "wrappers": [{"id": lambda env: env, "deep": 1}]},
            "learner": {"lr": partial(max, 3)},
            "actor": {"explore": lambda params, version: params + version, "count": 2},
        }
    )
    assert named["env"]["id"] == "__main__:Higher"
    assert named["env"]["wrappers"] == [{"id": "__main__:_lambda_", "deep": 1}]
    assert named["learner"]["lr"] == "__main__:partial"
    assert named["actor"] == {"explore": "__main__:_lambda__", "count": 2}
    assert found(given, "__main__:Higher", monkeypatch).tall == 2.0
    assert found(given, "__main__:partial", monkeypatch)(5) == 5


def test_what_the_callers_own_program_defines_is_given_by_value(
    given: GivenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is another program's in the run's processes."""
    main = ModuleType("__main__")
    main.Mine = mine = type("Mine", (), {"__module__": "__main__"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert given.named({"env": {"id": mine}}) == {"env": {"id": "__main__:Mine"}}
    with given.written() as environment:
        assert named_code.GIVEN in environment


CELL = """import gymnasium
class OfACell(gymnasium.Wrapper):
    def step(self, action):
        return self.env.step(action)
"""


def test_the_source_of_what_is_given_by_value_is_kept_in_the_run_s_folder(
    given: GivenObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as there is one: of a class of a notebook it is that of its whole cell."""
    monkeypatch.setitem(linecache.cache, "<cell 7>", (len(CELL), None, CELL.splitlines(True), ""))
    cell: dict[str, Any] = {"__name__": "__main__"}
    code = compile(CELL, "<cell 7>", "exec")
    FunctionType(code, cell)()
    wrappers = [{"id": cell["OfACell"]}, {"id": lambda env: env}, {"id": partial(max, 3)}]
    gymnasium.register("Ours-v0", entry_point=cast(Any, local_class(3.0)))
    try:
        assert given.registered("Ours-v0") == "__main__:Ours"
    finally:
        gymnasium.registry.pop("Ours-v0")
    given.named({"env": {"id": local_class(2.0), "wrappers": wrappers}})
    start = starts.begin("cartpole", (), tmp_path / "run", resume=False)
    with given.written() as environment:
        monkeypatch.setenv(named_code.GIVEN, environment[named_code.GIVEN])
        run_folder.prepare(start)
    kept = {path.name: path.read_text() for path in (tmp_path / "run" / "code").iterdir()}
    assert kept.keys() == {"Higher.py", "Ours.py", "OfACell.py", "_lambda_.py"}
    assert "class Higher(CartPoleEnv):" in kept["Higher.py"] == kept["Ours.py"]
    assert kept["OfACell.py"] == CELL and "lambda env: env" in kept["_lambda_.py"]
    monkeypatch.delenv(named_code.GIVEN)
    run_folder.prepare(start)
    assert not (tmp_path / "run" / "code").exists()


def test_two_of_one_name_stay_two(given: GivenObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = local_class(1.0), local_class(2.0)
    names = [given.named({"env": {"id": one}})["env"]["id"] for one in (first, second, first)]
    assert names == ["__main__:Higher", "__main__:Higher_", "__main__:Higher"]
    assert found(given, names[1], monkeypatch).tall == 2.0


def test_an_id_that_only_this_program_registered(
    given: GivenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    gymnasium.register("Ours-v0", entry_point=cast(Any, local_class(3.0)), max_episode_steps=7)
    try:
        name = given.registered("Ours-v0")
    finally:
        gymnasium.registry.pop("Ours-v0")
    with given.written() as environment:
        monkeypatch.setenv(named_code.GIVEN, environment[named_code.GIVEN])
        env = make_env(EnvConfig(name))
    assert env.spec is not None and env.spec.max_episode_steps == 7
    assert given.registered("CartPole-v1") == given.registered("nobody's") == ""


def test_where_no_code_is_named_an_object_is_refused(given: GivenObjects) -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs = .* take a class or a function"):
        given.named({"env": {"kwargs": {"reward": max}}})
    with pytest.raises(ConfigError, match="give it to a key"):
        given.named({"env": CartPoleEnv})


def test_what_cannot_be_handed_over_is_named(given: GivenObjects, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        given.named({"env": {"id": lambda: file}})
        with (
            pytest.raises(ConfigError, match=r"_lambda_ cannot be handed .* module:factory"),
            given.written(),
        ):
            pass


def test_a_later_process_says_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(named_code.GIVEN, raising=False)
    with pytest.raises(EnvError, match="__main__:Gone was an object of the program that called"):
        make_env(EnvConfig("__main__:Gone"))
