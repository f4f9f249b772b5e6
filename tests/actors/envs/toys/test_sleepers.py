"""The environments that only take time: how much, how spread, and how they fail when asked to."""

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env
from headrace.actors.envs.toys import sleepers


def made(**kwargs: Any) -> Any:
    return make_env(EnvConfig("headrace/Sleeper-v0", kwargs))


def slept(monkeypatch: pytest.MonkeyPatch, kind: str, episodes: int) -> list[float]:
    """What it asked to sleep, at every reset and step, without sleeping."""
    times: list[float] = []
    monkeypatch.setattr(time, "sleep", times.append)
    env = made(kind=kind)
    env.reset(seed=3)
    for _ in range(episodes):
        ends = [env.step(0)[3] for _ in range(200)]
        assert ends == [False] * 199 + [True]
        env.reset()
    return times[1:]


@pytest.mark.parametrize("kind", ["tail", "normal"])
def test_the_mean_is_the_mean(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    times = slept(monkeypatch, kind, 100)
    mean, share = sum(times) / 20_000, np.std(times) / 20_000**0.5
    assert abs(mean - sleepers.mean_step_s({"kind": kind})) < 4 * share


def test_the_means_in_figures() -> None:
    assert sleepers.mean_step_s({}) == pytest.approx(0.97 * 0.003 + 0.03 * 0.1)
    assert sleepers.mean_step_s({"kind": "normal"}) == pytest.approx(0.01004245 + 0.15 / 200)
    assert sleepers.mean_step_s({"step_s": 0.5}) == 0.5
    assert sleepers.mean_step_s({"step_s": 0.5, "slower": 4.0}) == 2.0
    assert sleepers.mean_step_s({"step_s": 0.0, "reset_s": 1.0, "slower": 4.0}) == 4.0 / 200


def test_the_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = slept(monkeypatch, "tail", 20)
    assert set(tail) == {0.0, 0.003, 0.1}
    normal = slept(monkeypatch, "normal", 50)
    assert normal[200::201] == [0.15] * 50
    del normal[200::201]
    assert (min(normal), round(float(np.median(normal)), 3)) == (0.0, 0.01)
    assert 0.02 < max(normal) < 0.04


def test_it_is_an_environment() -> None:
    check_env(made(step_s=0.0), skip_render_check=True)


def test_a_seed_decides_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept(monkeypatch, "normal", 1) == slept(monkeypatch, "normal", 1)
    first = [made().reset()[0].tolist() for _ in range(2)]
    assert first[0] != first[1]


def test_it_takes_the_time() -> None:
    env = made(step_s=0.02)
    env.reset(seed=1)
    began, burnt = time.perf_counter(), time.thread_time()
    env.step(0)
    assert time.perf_counter() - began >= 0.02
    assert time.thread_time() - burnt < 0.01
    slower = made(step_s=0.002, slower=10.0)
    slower.reset(seed=1)
    began = time.perf_counter()
    slower.step(0)
    assert time.perf_counter() - began >= 0.02


def test_busy_burns_the_time_of_its_own_thread() -> None:
    env = made(step_s=0.05, busy=True)
    env.reset(seed=1)
    burnt = time.thread_time()
    env.step(0)
    assert 0.05 <= time.thread_time() - burnt < 0.07


def test_it_crashes_when_asked_and_as_often() -> None:
    env = made(step_s=0.0, crash=0.25)
    env.reset(seed=1)
    crashes = 0
    for _ in range(400):
        try:
            env.step(0)
        except RuntimeError:
            crashes += 1
    assert 70 < crashes < 130


def test_it_stalls() -> None:
    env = made(stall=1.0)
    env.reset(seed=1)
    thread = threading.Thread(target=env.step, args=(0,), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()


@pytest.mark.processes
def test_it_dies() -> None:
    code = (
        "from headrace.actors.envs.toys.sleepers import Sleeper;"
        " e = Sleeper(die=1.0); e.reset(); e.step(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 13


def test_an_unknown_kind() -> None:
    with pytest.raises(Exception, match='kind is \'odd\'; set it to "tail" or "normal"'):
        made(kind="odd")


def test_one_instance_of_four_is_slow_by_its_first_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    monkeypatch.setattr(sleepers.Sleeper, "_spend", lambda _, seconds: spent.append(seconds))
    for seed in range(4):
        env = sleepers.Sleeper(step_s=0.001, slow_step_s=0.1)
        env.reset(seed=seed)
        env.reset()
        env.step(np.int64(0))
    assert [seconds for seconds in spent if seconds] == [0.1, 0.001, 0.001, 0.001]


def test_a_team_takes_as_long_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    team, alone = sleepers.Team(agents=3, kind="tail"), sleepers.Sleeper(kind="tail")
    times: list[float] = []
    monkeypatch.setattr(time, "sleep", times.append)
    seen, _ = team.reset(seed=5)
    first = alone.reset(seed=5)[0]
    assert [*seen] == ["agent_0", "agent_1", "agent_2"]
    times.clear()
    for step in range(1, sleepers.EPISODE + 1):
        seen, paid, ended, cut, _ = team.step(dict.fromkeys(team.agents, np.int64(0)))
        ours = times.copy()
        times.clear()
        first, reward, _, over, _ = alone.step(np.int64(0))
        assert times == ours and len(ours) == 1
        times.clear()
        for agent in team.possible_agents:
            np.testing.assert_array_equal(seen[agent], first)
            assert (paid[agent], ended[agent], cut[agent]) == (reward, False, over)
        assert bool(team.agents) is (step < sleepers.EPISODE)
