"""Measures how long a step takes, and how much of that is computing in this thread."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.kinds import AnyPlay, agents_in, play_of
from headrace.actors.envs.convert import blamed, mask_of
from headrace.learner.spaces import Spaces

_STEPS, _LONGEST_S = 64, 0.3
_TELLING_S = 100e-6  # of shorter steps the share of computing is a guess, and decides nothing


class StepCost(NamedTuple):
    """Holds the measured cost of one step."""

    seconds: float
    computes: float  # share of it: 1 = all the time, 0 = it only waits

    def __str__(self) -> str:
        slow = self.seconds >= 1e-3
        took = f"{self.seconds * 1e3:.3g} ms" if slow else f"{self.seconds * 1e6:.0f} us"
        if self.seconds < _TELLING_S:
            return f"a step takes {took}"
        return f"a step takes {took} of which {self.computes:.0%} computes"


def cost_of(
    env: Any,
    spaces: Spaces,
    *,
    config: EnvConfig,
    seed: int,
    width: int = 0,
    steps: int = _STEPS,
    longest_s: float = _LONGEST_S,
) -> StepCost:
    """Measures `steps` random actions, at most `longest_s`; width = environments of a vector, 0 = a
    single one."""
    with blamed(f"{config.id} failed when its step was timed"):
        step = _stepping(env, spaces, seed, width)
        step()  # what is only built at the first one
        taken, stepped, began, busy = 0, 0.0, time.perf_counter(), _busy()
        while taken < steps and (not taken or time.perf_counter() - began < longest_s):
            stepped += step()
            taken += 1
        computes = (_busy() - busy) / (time.perf_counter() - began)
    return StepCost(stepped / taken, min(1.0, computes))


def speedup(first: Any, second: Any, spaces: Spaces, *, config: EnvConfig) -> float:
    """Returns how many cores two environments in two threads keep busy: up to 2 when they compute
    without holding Python's lock, 1 when they hold it. Steps of uneven length do not change
    that."""
    with blamed(f"{config.id} failed when its step was timed"):
        gate = threading.Barrier(3)
        computed: list[float] = []
        errors: list[BaseException] = []

        def play(step: Callable[[], object]) -> None:
            gate.wait()
            until, began = time.perf_counter() + _LONGEST_S, time.thread_time()
            try:
                while time.perf_counter() < until:
                    step()
            except BaseException as error:  # noqa: BLE001 - raised below, by whoever waits
                errors.append(error)
            computed.append(time.thread_time() - began)

        steps = [_stepping(env, spaces, seed, 0) for seed, env in ((1, first), (2, second))]
        threads = [threading.Thread(target=play, args=(step,), daemon=True) for step in steps]
        for thread in threads:
            thread.start()
        gate.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(computed) / (time.perf_counter() - began)


def _stepping(env: Any, spaces: Spaces, seed: int, width: int) -> Callable[[], float]:
    """Returns a function that makes one step and returns its seconds; resets are not counted."""
    dice, actions = np.random.default_rng(seed), ActionConverter(spaces.action)
    if agents_in(env):
        return _stepping_agents(play_of(env), spaces, seed)
    newest = env.reset(seed=seed)[0]

    def step() -> float:
        nonlocal newest
        rows = random_rows(spaces.action, dice, width or 1, mask_of(env, newest, spaces))
        action = actions.many(rows) if width else actions.one(rows[0])
        began = time.perf_counter()
        newest, _, ended, cut, _ = env.step(action)
        took = time.perf_counter() - began
        if not width and (ended or cut):
            newest = env.reset()[0]
        return took

    return step


def _busy() -> float:
    """Returns the seconds that this thread computed, or waited for a core: on a full machine that
    is not the waiting that threads are good for."""
    ran = time.thread_time()  # to the nanosecond; schedstat's own figure is milliseconds late
    try:
        queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # the kernel does not say
        queued = 0.0
    return ran + queued


def _stepping_agents(play: AnyPlay, spaces: Spaces, seed: int) -> Callable[[], float]:
    """Returns a function that makes one step of all whose turn it is, as _stepping() does."""
    dice, actions = np.random.default_rng(seed), ActionConverter(spaces.action)
    newest = play.reset(seed)

    def step() -> float:
        nonlocal newest
        chosen = {}
        for agent in play.acting:
            seen = newest.get(agent)
            mask = None if seen is None else mask_of(play, seen, spaces)
            chosen[agent] = actions.one(random_rows(spaces.action, dice, 1, mask)[0])
        began = time.perf_counter()
        news, came = play.step(chosen)
        took = time.perf_counter() - began
        newest = {agent: told.observation for agent, told in news.items()} | came
        if play.over:
            newest = play.reset(None)
        return took

    return step
