"""Environments stepped with nothing of ours beside them."""

import threading
from typing import Any

import pytest

from headrace.actors.config import EnvConfig
from headrace.actors.envs.toys import sleepers
from headrace.launch.bench import ideal

SEEDS = [7, 8, 11]
PATIENCE_S = 20.0  # only a hang reaches it


class Clock:
    """In place of the module `time`: a sleep lasts until every environment has taken 5 steps, each
    look at the clock finds it one second later."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}  # by thread
        self.news = threading.Condition()
        self.now = 0.0

    def stepped(self) -> None:
        with self.news:
            thread = threading.get_ident()
            self.steps[thread] = self.steps.get(thread, 0) + 1
            self.news.notify()

    def sleep(self, _seconds: float) -> None:
        with self.news:
            before = dict(self.steps)
            assert self.news.wait_for(lambda: self._five_more(before), PATIENCE_S)

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def _five_more(self, before: dict[int, int]) -> bool:
        more = [count - before.get(thread, 0) for thread, count in self.steps.items()]
        return len(more) == len(SEEDS) and min(more) >= 5


def test_bare_environments_have_threads_and_seeds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, began = Clock(), dict[int | None, set[int]]()  # threads that reset with this seed
    reset, spend = sleepers.Sleeper.reset, sleepers.Sleeper._spend

    def noted(self: sleepers.Sleeper, *, seed: int | None = None, options: Any = None) -> Any:
        began.setdefault(seed, set()).add(threading.get_ident())
        return reset(self, seed=seed, options=options)

    def spent(self: sleepers.Sleeper, seconds: float) -> None:
        spend(self, seconds)
        if seconds:
            clock.stepped()

    monkeypatch.setattr(ideal, "time", clock)
    monkeypatch.setattr(sleepers.Sleeper, "reset", noted)
    monkeypatch.setattr(sleepers.Sleeper, "_spend", spent)
    monkeypatch.setattr(sleepers, "EPISODE", 3)
    env = EnvConfig("headrace.actors.envs.toys.sleepers:Sleeper", {"step_s": 0.001})
    rate = ideal.bare_steps_per_s(env, SEEDS, seconds=8.0)
    # Five steps each in what the clock calls a second; the last may not be counted yet.
    assert rate >= 4 * len(SEEDS)
    assert rate <= sum(clock.steps.values()) - 4 * len(SEEDS)  # the first quarter is left out
    again = began.pop(None)
    assert {seed: len(threads) for seed, threads in began.items()} == dict.fromkeys(SEEDS, 1)
    assert len(again) == len(set.union(*began.values())) == len(SEEDS)


def test_several_agents_are_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ideal, "_LONGEST_S", 0.1)
    toys = "headrace.actors.envs.toys"
    team = ideal.env_cost(EnvConfig(f"{toys}.sleepers:Team", {"kind": "tail"}), 1)
    assert team == ideal.env_cost(EnvConfig("headrace/Sleeper-v0", {"kind": "tail"}), 1)
    for name in ("Seats", "Nim"):
        cost = ideal.env_cost(EnvConfig(f"{toys}.several_agents:{name}"), 1)
        assert cost is not None and 0 < cost.seconds < 0.01
