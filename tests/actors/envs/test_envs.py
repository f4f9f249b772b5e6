"""Environments by name, and everything that can be wrong with the name or the environment."""

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector import AutoresetMode

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError, spaces_of
from headrace.actors.envs.make import make_env, make_pool, make_vector, probe
from headrace.actors.envs.registering import episode_limit
from headrace.learner.spaces import Leaf, Spaces, discrete
from tests.needs import missing

Make = Callable[[EnvConfig], object]


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


def refusal(config: EnvConfig, make: Make = probe) -> str:
    with pytest.raises(EnvError) as caught:
        make(config)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_gymnasium_id_with_its_wrappers_and_keyword_arguments() -> None:
    env = make_env(EnvConfig("CartPole-v1", {"max_episode_steps": 3}))
    env.reset(seed=1)
    cuts = [env.step(step % 2)[3] for step in range(3)]
    assert cuts == [False, False, True]
    env.close()


def test_spaces_as_data() -> None:
    assert probe(EnvConfig("CartPole-v1")) == Spaces((Leaf("obs", "<f4", (4,)),), discrete(2))


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


def test_an_installed_package_registers_the_ids_of_its_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gymnasium 1 no longer loads what a package declares."""
    called: list[str] = []

    def register() -> None:
        called.append("once")
        gymnasium.register("late/Pole-v0", "gymnasium.envs.classic_control:CartPoleEnv")

    def entry_points(*, group: str, name: str) -> list[Any]:
        declared = {("gymnasium.envs", "late"): [SimpleNamespace(load=lambda: register)]}
        return declared.get((group, name), [])

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setitem(gymnasium.registry, "late/Pole-v0", gymnasium.spec("CartPole-v1"))
    del gymnasium.registry["late/Pole-v0"]
    assert probe(EnvConfig("late/Pole-v0")) == probe(EnvConfig("CartPole-v1"))
    probe(EnvConfig("late/Pole-v0"))
    assert called == ["once"]
    assert "Namespace early not found" in refusal(EnvConfig("early/Pole-v0"))


def test_a_probe_says_which_texts_the_network_does_not_see(
    module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    space = Dict(board=Box(0, 1, (3,)), mission=Text(9), more=Tuple([Text(3), Discrete(2)]))
    module.__dict__["make"] = lambda: Plain(space)
    found = probe(EnvConfig("mine:make"))
    assert [leaf.name for leaf in found.observation] == ["board", "more.1"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("mine:make: the network does not see mission, more.0, which is text")


def test_a_probe_closes_what_it_made(module: ModuleType) -> None:
    made: list[Plain] = []

    def make(**kwargs: Any) -> Plain:
        made.append(Plain(**kwargs))
        return made[-1]

    module.__dict__["make"] = make
    probe(EnvConfig("mine:make"))
    refusal(EnvConfig("mine:make", {"action": Text(3)}))
    assert [env.closed for env in made] == [True, True]


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("CartPoll-v1", {}, "Environment `CartPoll` doesn't exist"),
        ("CartPole-v1", {"no_such_word": 1}, "'no_such_word' .*; correct env.kwargs"),
        ("mine:make", {"no_such_word": 1}, "'no_such_word'; correct env.kwargs"),
        ("no_such_module:make", {}, "No module named 'no_such_module'"),
        ("no_such_module:Some/Env-v1", {}, "No module named 'no_such_module'"),
        ("mine:missing", {}, "no attribute 'missing'"),
        ("mine:three", {}, "mine:three is not callable"),
        ("mine:raises", {}, "RuntimeError: the licence$"),
        ("mine:other", {}, "made a dict, which is no gymnasium.Env"),
    ],
)
def test_names_that_make_no_environment(
    module: ModuleType, name: str, kwargs: dict[str, Any], words: str
) -> None:
    def raises() -> None:
        raise RuntimeError("the licence\nhas expired")

    module.__dict__.update(make=Plain, three=3, raises=raises, other=dict)
    line = refusal(EnvConfig(name, kwargs))
    assert re.search(f"^env.id = '{name}'.*{words}", line)


def test_remarks_about_rounded_bounds_are_not_the_users_concern(module: ModuleType) -> None:
    module.__dict__["make"] = lambda: Plain(Box(-1, np.full(3, 0.1), (3,), np.float32))
    with pytest.warns(UserWarning, match="precision lowered"):
        module.make()
    probe(EnvConfig("mine:make"))


def test_wrappers_go_around_in_their_order(module: ModuleType) -> None:
    class Named(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any, *, name: str) -> None:
            super().__init__(env)
            self.name = name

    module.__dict__.update(make=Plain, Named=Named)
    wrappers = ({"id": "mine:Named", "name": "inner"}, {"id": "mine:Named", "name": "outer"})
    env: Any = make_env(EnvConfig("mine:make", wrappers=wrappers))
    assert (env.name, env.env.name, type(env.env.env)) == ("outer", "inner", Plain)


def test_gymnasiums_own_wrappers() -> None:
    limit = {"id": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 2}
    resize = {"id": "gymnasium.wrappers:FlattenObservation"}
    env = make_env(EnvConfig("CartPole-v1", wrappers=(limit, resize)))
    env.reset(seed=1)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "x"}, "env.wrappers[1] has no id; set it to module:factory"),
        ({"id": "mine:missing"}, "env.wrappers[1].id = 'mine:missing' cannot be made"),
        ({"id": "no_such_module:x"}, "No module named 'no_such_module'"),
        ({"id": "mine:keep", "x": 1}, "'x'; correct the other keys of env.wrappers[1]"),
        ({"id": "mine:lose"}, "env.wrappers[1].id = 'mine:lose' made a int"),
    ],
)
def test_wrong_wrappers(module: ModuleType, table: dict[str, Any], words: str) -> None:
    """What was made until then is closed."""
    made = Plain()
    module.__dict__.update(make=lambda: made, keep=lambda env: env, lose=id)
    assert words in refusal(EnvConfig("mine:make", wrappers=({"id": "mine:keep"}, table)))
    assert made.closed


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5", "envpool:CartPole-v1"])
def test_many_at_once_take_no_wrappers(name: str) -> None:
    config = EnvConfig(name, wrappers=({"id": "mine:wrap"},))
    for make in (lambda config: make_vector(config, 2), lambda config: make_pool(config, 2, 1)):
        line = refusal(config, make)
        assert "takes no env.wrappers" in line


@pytest.mark.parametrize("name", ["Acrobot-v1", "mine:make"])
def test_no_vector_class(module: ModuleType, name: str) -> None:
    module.__dict__["make"] = Plain
    line = refusal(EnvConfig(name), lambda config: make_vector(config, 2))
    assert name in line
    assert 'set actor.stepping = "inline"' in line


@pytest.mark.parametrize("told", [{"autoreset_mode": AutoresetMode.SAME_STEP}, {}])
def test_a_vector_class_that_hides_the_last_observation(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    """Or does not say."""

    class Hides(gymnasium.vector.VectorEnv[Any, Any, Any]):
        metadata = told

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


@pytest.fixture
def envpool() -> None:
    if importlib.util.find_spec("envpool") is None:
        missing("not installed: pip install 'headrace[envpool]'")


POLE = EnvConfig("envpool:CartPole-v1", {"max_episode_steps": 5})


@pytest.mark.slow
@pytest.mark.usefixtures("envpool")
def test_a_pool_brings_back_whoever_is_done() -> None:
    """The step after an end is the one that resets: it has taken no step yet."""
    pool = make_pool(POLE, 4, 3)
    assert spaces_of(pool, POLE) == probe(POLE) == probe(EnvConfig("CartPole-v1"))
    pool.async_reset()
    ended: dict[int, bool] = {}
    for _ in range(40):
        observations, rewards, terminated, truncated, info = pool.recv()
        assert observations.shape == (3, 4)
        for place, env in enumerate(info["env_id"].tolist()):
            assert (info["elapsed_step"][place] == 0) == ended.get(env, True)
            assert rewards[place] == (not ended.get(env, True))
            ended[env] = bool(terminated[place] or truncated[place])
        pool.send(np.zeros(3, np.int64), info["env_id"])
    assert set(ended) == {0, 1, 2, 3}
    pool.close()


@pytest.mark.slow
@pytest.mark.usefixtures("envpool")
def test_a_pool_plays_by_its_seed() -> None:
    def first(seed: int | None) -> Any:
        pool = make_pool(EnvConfig(POLE.id), 4, 4, seed)
        pool.async_reset()
        observations, *_, info = pool.recv()
        pool.close()
        return observations[np.argsort(info["env_id"])]

    np.testing.assert_array_equal(first(1), first(1))
    assert not np.isin(first(1), first(2)).any()
    assert not np.isin(first(None), first(None)).any()


@pytest.mark.slow
@pytest.mark.usefixtures("envpool")
def test_a_pool_of_games_sends_single_frames() -> None:
    config = EnvConfig("envpool:Breakout-v5", stack=4)
    pool = make_pool(config, 1, 1)
    pool.async_reset()
    assert pool.recv()[0].shape == (1, 84, 84)
    leaf = Leaf("obs", "|u1", (84, 84), stack=4)
    assert spaces_of(pool, config) == probe(config) == Spaces((leaf,), discrete(4))
    pool.close()


@pytest.mark.slow
@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("envpool:CartPoll-v1", {}, "EnvPool has no such task"),
        ("envpool:CartPole-v1", {"seed": 1}, "leave seed out; the run's seed decides it"),
        ("envpool:CartPole-v1", {"stack_num": 4}, "leave stack_num out; set env.stack"),
        ("envpool:CartPole-v1", {"no_such_word": 1}, "'no_such_word'; correct env.kwargs"),
        ("CartPole-v1", {}, "is not EnvPool's; those begin with envpool:"),
    ],
)
def test_wrong_pools(name: str, kwargs: dict[str, Any], words: str) -> None:
    assert words in refusal(EnvConfig(name, kwargs), lambda config: make_pool(config, 4, 2))


def test_a_pool_is_made_as_one() -> None:
    for make in (make_env, lambda config: make_vector(config, 2)):
        assert 'set actor.stepping = "auto"' in refusal(EnvConfig("envpool:CartPole-v1"), make)


def test_envpool_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    line = refusal(POLE, lambda config: make_pool(config, 4, 2))
    assert line.endswith("install envpool: pip install 'headrace[envpool]'")
    assert line == refusal(POLE)
    monkeypatch.setenv("HEADRACE_IN_IMAGE", "1")
    line = "install envpool: build the image with --build-arg EXTRAS=envpool"
    assert refusal(POLE).endswith(line)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "limit"),
    [
        ("CartPole-v1", {}, 500),
        ("Pendulum-v1", {}, 200),
        ("CartPole-v1", {"max_episode_steps": 70}, 70),
        ("headrace.actors.envs.toys.sleepers:Sleeper", {}, 0),
        ("no_such_package:Env-v0", {}, 0),
        ("NoSuchEnv-v7", {}, 0),
    ],
)
def test_the_most_steps_of_an_episode_are_those_of_its_registration(
    env_id: str, kwargs: dict[str, int], limit: int
) -> None:
    assert episode_limit(EnvConfig(id=env_id, kwargs=kwargs)) == limit
