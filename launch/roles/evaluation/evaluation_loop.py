"""The evaluations of one run: waits for new weights, has them played in a thread, reports the
score."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.actors import evaluator, users_code
from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.envs.convert import EnvError
from headrace.actors.evaluation_thread import EvaluationThread
from headrace.actors.evaluator import Scores, Seated
from headrace.broker.peers.evaluator import LAST_S, EvaluatorEnd
from headrace.broker.weights.blobs import Blob
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.results import confidence
from headrace.launch.roles.evaluation.evaluation_results import EvaluationResults, EvaluatorMetrics
from headrace.launch.roles.evaluation.partners import Partner
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)

# Steps of an episode, after which an evaluation is given up the first time: a policy that is not
# trained yet may do the same for ever, and no other version would be scored meanwhile.
_LONGEST = 10_000


class EvaluationLoop:
    """Evaluates the newest weights of one run, one evaluation after another."""

    def __init__(
        self,
        end: EvaluatorEnd,
        run: run_file.Run,
        spaces: Spaces,
        *,
        out: Path | None,
        metrics: EvaluatorMetrics,
        against: PolicyLike | None = None,
        others: Sequence[Seated] = (),
        partners: Sequence[Partner] = (),
    ) -> None:
        self._end, self._run, self._spaces, self._metrics = end, run, spaces, metrics
        self._results = EvaluationResults(out, run, spaces) if out is not None else None
        # In float32, as the weights are kept: a score is that of the checkpoint.
        self._policy = Policy(run.model, spaces, seed=run.evaluate.seed, precision="float32")
        self._against, self._others = against, others
        self._partners = partners  # those of the others who learn
        self._began = time.monotonic()
        self.game: EvaluationThread | None = None  # the evaluation that is being played
        # The highest mean, and of which version: "" = of the return; ".metric.NAME".
        self._best: dict[str, tuple[float, int]] = {}
        self._longest = _LONGEST  # steps of an episode
        self._over_at = 0.0  # when we heard that the run is over; 0 = not yet

    async def run(self) -> None:
        """Evaluates until the run is over and its last weights are evaluated, if there is time for
        that."""
        how, due = self._run.evaluate, 0.0
        while (blob := await self._next_weights(due)) is not None:
            began, used = time.monotonic(), time.process_time()
            await self._evaluate(blob)
            spent_s = time.process_time() - used
            due = began + max(how.every_s, spent_s / (how.share * runtime.cores()))

    async def _next_weights(self, due: float) -> Blob | None:
        """Returns the newest weights, once it is time; None = the run is over and these are
        known."""
        end, weights = self._end, self._end.weights
        while self._seconds_left() > 0:
            wait = due - time.monotonic()
            if wait <= 0:
                end.ask_for_blob()
            if weights.blob is not None and (wait <= 0 or (end.over and not weights.fetching)):
                return end.take_blob()
            if end.over and weights.blob is None and not weights.fetching:
                return None
            # While they are fetched at the end, or it is not time yet.
            await self._wait_for_news(
                self._seconds_left() if end.over else max(wait, 0.0) or math.inf
            )
        return None

    async def _evaluate(self, blob: Blob) -> None:
        """Evaluates one version; a failure in an environment costs this evaluation only."""
        policy = self._policy
        self._end.weights.acts_with(blob.announce.version, policy.load(blob))
        began = time.monotonic()
        try:
            for partner in self._partners:
                await partner.renew()
            scores = await self._play()
        except (EnvError, ValueError) as error:  # the network may make no numbers any more
            self._metrics.failures.inc()
            log.error(
                "version %d is not evaluated: %s",
                policy.version,
                error,
                extra={"traceback": users_code.traceback_of(error)},
            )
        except evaluator.StoppedError:
            log.info("version %d is not evaluated: the run is over", policy.version)
        except evaluator.TooLongError:
            log.warning(
                "version %d is not evaluated: an episode was not over after %d steps; the next one"
                " may take twice as many. A policy that does the same again and again is scored by"
                " drawn actions: evaluate.greedy=false",
                policy.version,
                self._longest,
            )
            self._longest *= 2
        else:
            self._report(blob, scores, time.monotonic() - began)

    async def _play(self) -> Scores:
        """Plays one evaluation. At the end of the run it is given up for the last weights, if there
        are newer ones."""
        run = self._run
        game = EvaluationThread(
            self._policy,
            run.env,
            self._spaces,
            run.evaluate,
            against=self._against,
            others=self._others,
            timeout_s=run.actor.step_timeout_s,
            tell=self._end.news.set,
            longest=self._longest,
        )
        self.game = game
        game.start()
        try:
            while not game.done:
                if self._seconds_left() <= 0 or (
                    self._end.over and self._end.weights.blob is not None
                ):
                    raise evaluator.StoppedError
                game.check()
                await self._wait_for_news(min(1.0, self._seconds_left()))
            return game.result()
        finally:
            self.game = None
            game.stop()

    async def _wait_for_news(self, seconds: float) -> None:
        """Waits for something new, at most this many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
                await self._end.news.wait()
        self._end.news.clear()

    def _seconds_left(self) -> float:
        """Returns the seconds that remain once the run is over; inf before that."""
        if not self._end.over:
            return math.inf
        self._over_at = self._over_at or time.monotonic()
        return self._over_at + LAST_S - time.monotonic()

    def _report(self, blob: Blob, scores: Scores, seconds: float) -> None:
        version, known = blob.announce.version, confidence.interval_of(scores.returns)
        # Before the first batch nothing was trained; after it only the learner knows the number.
        steps = self._end.trained_steps(version) if version else 0
        metrics = {
            f"metric.{name}": round(sum(lasts) / len(lasts), 6)
            for name, lasts in scores.metrics.items()
            if lasts
        }
        line = {
            "t": round(self._moment(), 3),
            "version": version,
            **({} if steps is None else {"trained_steps": steps}),
            "episodes": len(scores.returns),
            **{name: _rounded(value) for name, value in known._asdict().items()},
            "length": round(sum(scores.lengths) / len(scores.lengths), 3),
            **metrics,
            "greedy": self._run.evaluate.greedy,
            "seconds": round(seconds, 3),
        }
        self._metrics.show(line)
        self._end.stats = {
            name: float(value)
            for name, value in line.items()
            if name in ("version", "mean", "low", "high", "episodes", *metrics)
            and value is not None
        }
        # A beat may miss an evaluation; whoever waits for one that is good enough must not. Of an
        # environment that names only its successes the mean says nothing.
        whole = {name for name, lasts in scores.metrics.items() if len(lasts) == line["episodes"]}
        means = {f".metric.{name}": metrics[f"metric.{name}"] for name in whole}
        for name, mean in {"": known.mean, **means}.items():
            self._best[name] = max(self._best.get(name, (mean, version)), (mean, version))
            best, version_then = self._best[name]
            self._end.stats |= {f"best{name}": best, f"best_version{name}": float(version_then)}
        spread = "" if known.low is None else f" ({known.low:.2f} to {known.high:.2f})"
        log.info(
            "version %d: return %.2f%s, %d episodes in %.1f s",
            version,
            known.mean,
            spread,
            len(scores.returns),
            seconds,
        )
        if self._results is not None:
            self._results.add(blob, line)

    def _moment(self) -> float:
        clock = self._end.clock()
        if clock is None:
            clock = time.monotonic() - self._began
        return clock if self._results is None else self._results.moment(clock)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
