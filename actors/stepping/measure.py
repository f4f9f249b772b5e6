"""What a step costs: how long it takes, and how much of that is computing in this thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.config import EnvConfig
from actors.envs.convert import EnvError

_STEPS, _LONGEST_S = 64, 0.3


class Cost(NamedTuple):
    """Of one step."""

    seconds: float
    computes: float  # share of it: 1 = all the time, 0 = it only waits

    def __str__(self) -> str:
        took = f"{self.seconds * 1e3:.3g} ms" if self.seconds >= 1e-3 else _microseconds(self)
        return f"a step takes {took} of which {self.computes:.0%} computes"


def cost_of(env: Any, count: int, *, config: EnvConfig, seed: int, width: int = 0) -> Cost:
    """Random actions out of `count`; width = environments of a vector, 0 = a single one."""
    with _blamed(config):
        env.reset(seed=seed)
        step = _stepping(env, count, seed, width)
        step()  # what is only built at the first one
        steps, stepped, began, busy = 0, 0.0, time.perf_counter(), _busy()
        while steps < _STEPS and (not steps or time.perf_counter() - began < _LONGEST_S):
            stepped += step()
            steps += 1
        computes = (_busy() - busy) / (time.perf_counter() - began)
    return Cost(stepped / steps, min(1.0, computes))


def speedup(first: Any, second: Any, count: int, cost: Cost, *, config: EnvConfig) -> float:
    """Two environments in two threads, against one after the other: up to 2 when they compute
    without holding Python's lock, 1 or less when they hold it."""
    with _blamed(config):
        steps = [_stepping(first, count, 1, 0), _stepping(second, count, 2, 0)]
        second.reset(seed=2)
        rounds = max(2, min(_STEPS, int(_LONGEST_S / 2 / max(cost.seconds, 1e-6))))
        gate = threading.Barrier(3)
        errors: list[BaseException] = []

        def play(step: Callable[[], object]) -> None:
            gate.wait()
            try:
                for _ in range(rounds):
                    step()
            except BaseException as error:  # noqa: BLE001 - raised below, by whoever waits
                errors.append(error)

        began = time.perf_counter()
        for step in steps[:1]:
            for _ in range(rounds):
                step()
        alone = time.perf_counter() - began
        threads = [threading.Thread(target=play, args=(step,), daemon=True) for step in steps]
        for thread in threads:
            thread.start()
        gate.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return 2 * alone / (time.perf_counter() - began)


def _stepping(env: Any, count: int, seed: int, width: int) -> Callable[[], float]:
    """A call makes one step and gives its seconds; an episode's end is not counted."""
    dice = np.random.default_rng(seed)

    def step() -> float:
        action: Any = dice.integers(0, count, width) if width else int(dice.integers(0, count))
        began = time.perf_counter()
        _, _, ended, cut, _ = env.step(action)
        took = time.perf_counter() - began
        if not width and (ended or cut):
            env.reset()
        return took

    return step


def _busy() -> float:
    """Seconds that this thread computed, or wanted to: on a machine that is full it waits for a
    core, which is not the waiting that threads are good for."""
    try:
        ran, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:  # the kernel does not say
        return time.thread_time()
    return (int(ran) + int(queued)) / 1e9


@contextmanager
def _blamed(config: EnvConfig) -> Iterator[None]:
    try:
        yield
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(
            f"{config.id} failed when its step was timed: {type(error).__name__}: {error}"
        ) from error


def _microseconds(cost: Cost) -> str:
    return f"{cost.seconds * 1e6:.0f} us"
