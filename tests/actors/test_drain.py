"""A sampler that leaves waits for what it has sent, and no longer than told."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.broker.peers.outbox import FinishedUnroll
from tests.actors.test_sampler import Scene


class Skipping(selectors.DefaultSelector):
    """Never waits: where it would, the clock is put forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        assert found or timeout is not None, "nothing will ever happen"
        if not found and timeout:
            self.now += timeout
        return found


def in_no_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def after_two_unrolls() -> Scene:
    s = Scene()
    for _ in range(2):
        s.end.outbox.start(0)
        s.end.outbox.put(0, FinishedUnroll([b"u"], (0, 0), steps=1, digest=0))
    return s


def test_drain_waits_for_acknowledgements_and_no_longer() -> None:
    async def main() -> None:
        s, loop = after_two_unrolls(), asyncio.get_running_loop()
        loop.call_later(1.0, s.end.ack, (0, 0, 1))
        loop.call_later(2.5, s.end.ack, (0, 1, 2))
        await s.sampler.drain(10.0)
        assert loop.time() == pytest.approx(2.5, abs=0.01)
        assert s.events == [("start", 0, 0), ("start", 0, 1)]

    in_no_time(main)


@pytest.mark.parametrize("timeout_s", [0.0, 0.03, 3.0])
def test_drain_waits_no_longer_than_told(timeout_s: float) -> None:
    async def main() -> None:
        s, loop = after_two_unrolls(), asyncio.get_running_loop()
        loop.call_later(0.01, s.end.ack, (0, 0, 1))
        began = loop.time()
        await s.sampler.drain(timeout_s)
        assert loop.time() - began == pytest.approx(timeout_s, abs=0.01)
        assert len(s.end.outbox) == (2 if timeout_s == 0.0 else 1)

    in_no_time(main)


def test_drain_has_no_point_when_the_run_is_over() -> None:
    async def main() -> None:
        s, loop = after_two_unrolls(), asyncio.get_running_loop()
        loop.call_later(1.0, s.end.end)
        await s.sampler.drain(10.0)
        assert loop.time() == pytest.approx(1.0, abs=0.01)
        await s.sampler.drain(10.0)
        assert loop.time() == pytest.approx(1.0, abs=0.01)

    in_no_time(main)


def test_drain_with_nothing_open_returns_at_once() -> None:
    async def main() -> None:
        await Scene().sampler.drain(10.0)
        assert asyncio.get_running_loop().time() == 0.0

    in_no_time(main)
