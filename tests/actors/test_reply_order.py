"""The short cut without threads: who is answered, and when."""

import asyncio
import threading
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tests.actors import test_sampler
from tests.actors.test_reply import PATIENCE_S, End, sampler_of
from tests.actors.test_sampler import Script, follows


class Asking(Script):
    """Asks before it says that it is ready, as a thread does, and goes on with what it gets."""

    def __init__(self, groups: int, events: list[test_sampler.Event]) -> None:
        super().__init__(groups, events)
        self.answered: list[bool] = []

    def ready(self) -> list[int]:
        groups = super().ready()
        for group in groups:
            while (actions := self._ask(group)) is not None:
                assert actions.tolist() == [100 * group + self.taken[group]] * test_sampler.ENVS
                self.taken[group] += 1
                self.frame.obs["obs"][self.frame.columns(group)] = (group, self.taken[group])
                self.on_step(sum(self.taken))
        return groups

    def _ask(self, group: int) -> NDArray[np.int64] | None:
        with self.reply.lock:
            actions = self.reply.actions(group)
        self.answered.append(actions is not None)
        return actions


def scene_of(kind: type[Script], groups: int = 1) -> test_sampler.Scene:
    scene = test_sampler.Scene(groups)
    scene.stepper = kind(groups, scene.events)
    scene.sampler = sampler_of(
        cast(End, scene.end), scene.stepper, scene.policy, test_sampler.LENGTH
    )
    return scene


def test_only_the_middle_of_an_unroll_is_answered() -> None:
    async def main() -> None:
        s = scene_of(Asking)
        async with s.running():
            s.end.weights(0)
            s.end.grant((0, 2))
            await s.quiet()
        # A first observation is not; then, of three steps, the last is not.
        assert cast(Asking, s.stepper).answered == [False, *[True, True, False] * 2]
        follows(s.end.puts, 0)

    asyncio.run(main())


def test_a_network_for_which_rows_are_put_together_answers_nobody() -> None:
    async def main() -> None:
        s = scene_of(Asking, groups=2)
        s.policy.quick = False
        async with s.running():
            s.end.weights(0)
            s.end.grant((0, 2), (1, 2))
            await s.quiet()
        assert not any(cast(Asking, s.stepper).answered)
        assert [sorted(groups) for _, groups, _ in s.of("act")] == [[0, 1]] * 6
        for group in range(2):
            follows(s.end.puts, group)

    asyncio.run(main())


def test_when_the_run_is_over_nobody_is_answered() -> None:
    async def main() -> None:
        s = scene_of(Asking)
        s.stepper.on_step = lambda steps: s.end.end() if steps == 5 else None
        async with s.running() as task:
            s.end.weights(0)
            s.end.grant((0, 9))
            await task
        # As above, but for what would have come after the fifth step.
        assert cast(Asking, s.stepper).answered == [False, True, True, False, True, False]
        assert len(s.end.puts) == 1

    asyncio.run(main())


class Eager(Script):
    """So fast that its step is done, and its thread has asked, before send() has returned."""

    def send(self, group: int, actions: NDArray[np.int64]) -> None:
        asked, loop = threading.Event(), asyncio.get_running_loop()
        assert actions.tolist() == [100 * group + self.taken[group]] * test_sampler.ENVS

        def play() -> None:
            going = True
            while going:
                self.taken[group] += 1
                self.frame.obs["obs"][self.frame.columns(group)] = (group, self.taken[group])
                if not self.reply.lock.acquire(blocking=False):
                    asked.set()  # it has to wait for whoever holds the network
                    self.reply.lock.acquire()
                going = self.reply.actions(group) is not None
                self.reply.lock.release()
                asked.set()
            loop.call_soon_threadsafe(self._done, group)

        threading.Thread(target=play).start()
        assert asked.wait(PATIENCE_S)

    def _done(self, group: int) -> None:
        self.sent.append(group)
        self.news.set()


def test_a_reply_comes_after_the_step_before_was_written_down() -> None:
    """The event loop's action is on its way before the books are kept; the environment may be
    done first."""

    async def main() -> None:
        s = scene_of(Eager, groups=2)
        async with s.running():
            s.end.weights(0)
            s.end.grant((0, 3), (1, 3))
            async with asyncio.timeout(PATIENCE_S):
                while len(s.end.puts) < 6:
                    s.end.news.asleep.clear()
                    await s.end.news.asleep.wait()
        for group in range(2):
            follows(s.end.puts, group)

    asyncio.run(main())
