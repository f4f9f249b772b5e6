"""One evaluation in a thread of its own, so that the event loop goes on and an environment that
hangs holds up nobody."""

import asyncio
import threading
import time
from collections.abc import Callable

import torch

from headrace.actors import evaluator
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.evaluator import Player, Scores
from headrace.learner.spaces import Spaces

# An environment in the middle of a long step is left behind.
_STOP_S = 1.0


class EvaluationThread:
    """Played once. Everything but the playing is for the event loop."""

    def __init__(
        self,
        policy: Player,
        env: EnvConfig,
        spaces: Spaces,
        how: EvaluateConfig,
        *,
        timeout_s: float,
        tell: Callable[[], None],
    ) -> None:
        """`timeout_s`: of one step, before the environment is taken to hang. `tell`: called in the
        event loop at the end."""
        self._policy, self._env, self._spaces, self._how = policy, env, spaces, how
        self._timeout_s, self._tell = timeout_s, tell
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.last_step_at = time.monotonic()  # when it last asked whether it should go on
        self._outcome: Scores | BaseException | None = None
        self._thread = threading.Thread(target=self._play, name="game", daemon=True)

    @property
    def done(self) -> bool:
        return self._outcome is not None

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """EnvError when an environment hangs."""
        if time.monotonic() - self.last_step_at > self._timeout_s:
            raise EnvError(
                f"{self._env.id} has not answered for {self._timeout_s:g} s;"
                " if it is that slow, raise actor.step_timeout_s"
            )

    def result(self) -> Scores:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def stop(self) -> None:
        """No more steps. A thread that ran into the interpreter's end could take it down."""
        self._stopped = True
        self._thread.join(_STOP_S)

    def _play(self) -> None:
        torch.set_num_threads(1)  # every thread has a number of its own
        how = self._how
        outcome: Scores | BaseException
        try:
            outcome = evaluator.play(
                self._policy,
                self._env,
                self._spaces,
                how.episodes,
                how.envs,
                how.seed,
                how.greedy,
                stopped=self._asked,
            )
        except BaseException as error:  # noqa: BLE001 - the loop must hear of anything
            outcome = error
        self._outcome = outcome
        if not self._stopped:  # else the loop may be gone
            self._loop.call_soon_threadsafe(self._tell)

    def _asked(self) -> bool:
        self.last_step_at = time.monotonic()
        return self._stopped
