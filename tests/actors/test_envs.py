"""Environments by name, and everything that can be wrong with the name or the environment."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from actors.config import EnvConfig
from actors.envs import EnvError, make_env, make_vector, probe
from learner import spaces
from learner.spaces import Leaf, Spaces


class Plain(gymnasium.Env[Any, Any]):
    """Does nothing; its spaces are what the test says."""

    def __init__(self, observation: Any = None, action: Any = None, word: str = "") -> None:
        self.observation_space = observation or Box(-1, 1, (3,), np.float32)
        self.action_space = action or Discrete(2)
        self.word = word
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module called `mine`."""
    made = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", made)
    return made


def refusal(name: str, **kwargs: Any) -> str:
    with pytest.raises(EnvError) as caught:
        probe(EnvConfig(name, kwargs))
    line = str(caught.value)
    assert "\n" not in line
    assert name in line
    return line


def test_a_gymnasium_id_with_its_wrappers_and_keyword_arguments() -> None:
    env = make_env(EnvConfig("CartPole-v1", {"max_episode_steps": 3}))
    env.reset(seed=1)
    cuts = [env.step(step % 2)[3] for step in range(3)]
    assert cuts == [False, False, True]
    env.close()


def test_spaces_as_data() -> None:
    float32 = np.dtype(np.float32).str
    assert probe(EnvConfig("CartPole-v1")) == Spaces(
        (Leaf("obs", float32, (4,)),), spaces.Discrete(2)
    )


def test_module_and_factory(module: ModuleType) -> None:
    module.__dict__["make"] = Plain
    env = make_env(EnvConfig("mine:make", {"word": "given"}))
    assert isinstance(env, Plain)
    assert env.word == "given"


def test_a_gymnasium_id_may_name_the_module_that_registers_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody has imported it yet."""
    (tmp_path / "registers.py").write_text(
        "import gymnasium\n"
        'gymnasium.register("late/Pole-v0", "gymnasium.envs.classic_control:CartPoleEnv")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(gymnasium.registry, "late/Pole-v0", gymnasium.spec("CartPole-v1"))
    del gymnasium.registry["late/Pole-v0"]  # and it is taken out again after the test
    assert probe(EnvConfig("registers:late/Pole-v0")) == probe(EnvConfig("CartPole-v1"))


def test_a_probe_closes_what_it_made(module: ModuleType) -> None:
    made: list[Plain] = []

    def make(**kwargs: Any) -> Plain:
        made.append(Plain(**kwargs))
        return made[-1]

    module.__dict__["make"] = make
    probe(EnvConfig("mine:make"))
    refusal("mine:make", action=Box(-1, 1, (2,)))
    assert [env.closed for env in made] == [True, True]


def test_unknown_id() -> None:
    assert "doesn't exist" in refusal("CartPoll-v1")


def test_unknown_keyword() -> None:
    line = refusal("CartPole-v1", no_such_word=1)
    assert "no_such_word" in line


def test_missing_module() -> None:
    assert "No module named 'no_such_module'" in refusal("no_such_module:make")


def test_missing_factory(module: ModuleType) -> None:
    assert "no attribute 'make'" in refusal(f"{module.__name__}:make")


def test_factory_that_cannot_be_called(module: ModuleType) -> None:
    module.__dict__["make"] = 3
    assert "TypeError: mine:make is not callable" in refusal("mine:make")


def test_factory_that_raises(module: ModuleType) -> None:
    def make() -> None:
        raise RuntimeError("the licence\nhas expired")

    module.__dict__["make"] = make
    assert "RuntimeError: the licence" in refusal("mine:make")


def test_factory_that_makes_something_else(module: ModuleType) -> None:
    module.__dict__["make"] = dict
    assert "made a dict, which is no gymnasium.Env" in refusal("mine:make")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"action": Box(-1, 1, (2,))}, "only Discrete is"),
        ({"action": Discrete(2, start=1)}, "must count from 0, these start at 1"),
        ({"observation": Dict({"a": Box(-1, 1, (2,))})}, "only Box is"),
        ({"observation": Discrete(5)}, "only Box is"),
    ],
)
def test_spaces_that_are_not_supported(
    module: ModuleType, wrong: dict[str, Any], words: str
) -> None:
    module.__dict__["make"] = Plain
    assert words in refusal("mine:make", **wrong)


@pytest.mark.parametrize("name", ["Acrobot-v1", "mine:make"])
def test_no_vector_class(module: ModuleType, name: str) -> None:
    module.__dict__["make"] = Plain
    with pytest.raises(EnvError) as caught:
        make_vector(EnvConfig(name), 2)
    line = str(caught.value)
    assert name in line
    assert 'set actor.stepping = "inline"' in line
    assert "\n" not in line


def test_a_vector_class_that_hides_the_last_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hides(gymnasium.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

        def __init__(self, num_envs: int) -> None:
            self.num_envs = num_envs
            self.single_observation_space = Box(-1, 1, (3,))
            self.single_action_space = Discrete(2)

    def make(**kwargs: Any) -> Hides:
        return Hides(**kwargs)

    spec = gymnasium.envs.registration.EnvSpec(id="Hides-v0", vector_entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "Hides-v0", spec)
    with pytest.raises(EnvError, match=r"only NEXT_STEP keeps .* Set actor.stepping = \"inline\""):
        make_vector(EnvConfig("Hides-v0"), 2)
