"""Plays an evaluation in a thread: an environment that hangs does not stop the event loop."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence

import torch

from headrace.actors import evaluator
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.evaluator import Scores, Seated
from headrace.learner.spaces import Spaces

# An environment in the middle of a long step is left behind.
_STOP_S = 1.0


class EvaluationThread:
    """Plays one evaluation. Everything but the playing is called on the event loop."""

    def __init__(
        self,
        policy: PolicyLike,
        env: EnvConfig,
        spaces: Spaces,
        how: EvaluateConfig,
        *,
        timeout_s: float,
        tell: Callable[[], None],
        against: PolicyLike | None = None,
        others: Sequence[Seated] = (),
        longest: float = math.inf,
    ) -> None:
        """Takes `timeout_s`, the seconds a step may take before the environment is taken to hang,
        `tell`, which is called on the event loop at the end, and `longest`, the steps of an episode
        after which the evaluation is given up."""
        self._policy, self._env, self._spaces, self._how = policy, env, spaces, how
        self._against, self._others = against, others
        self._timeout_s, self._tell, self._longest = timeout_s, tell, longest
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
        """Raises EnvError when an environment hangs."""
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
        """Ends the playing after the current step; waits for it, since a thread that still runs
        when the interpreter ends could crash it."""
        self._stopped = True
        self._thread.join(_STOP_S)

    def _play(self) -> None:
        torch.set_num_threads(1)  # every thread has a number of its own
        outcome: Scores | BaseException
        try:
            outcome = evaluator.play(
                self._policy,
                self._env,
                self._spaces,
                self._how,
                against=self._against,
                others=self._others,
                stopped=self._asked,
                longest=self._longest,
            )
        except BaseException as error:  # noqa: BLE001 - the loop must hear of anything
            outcome = error
        self._outcome = outcome
        if not self._stopped:  # else the loop may be gone
            self._loop.call_soon_threadsafe(self._tell)

    def _asked(self) -> bool:
        self.last_step_at = time.monotonic()
        return self._stopped
