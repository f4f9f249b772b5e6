"""An evaluator process, put together: it plays the newest weights and keeps the best.

    the loop   consumes weights, produces scores; waits until it is time and there are new weights
    a thread   plays; an environment that hangs holds up nobody but its own evaluation

It asks for no credit and nobody waits for it. It runs with low priority: samplers go first.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

from actors import evaluator, users_code
from actors.envs.convert import EnvError
from actors.envs.make import probe
from actors.evaluator import Scores
from actors.policy import Policy
from broker import endpoints
from broker.blobs import Blob
from broker.evaluator_end import LAST_S, EvaluatorEnd
from launch import allow as allowing
from launch import claim, config, guard, interval, keyring, limits, logs, notify, process, toml, web
from launch.evaluations import EvaluatorMetrics, Keep
from launch.game import Game
from learner.spaces import Spaces

log = logging.getLogger(__name__)

_NICE = 10
_PATIENCE_S = 2.0  # without an answer, before we say so


def evaluate(
    broker: str,
    *,
    name: str,
    out: Path | None,
    sets: dict[str, Any],
    metrics_host: str,
    metrics_port: int | None,
    key: Path | None = None,
    allow: Sequence[str] = (),  # code that the broker's run may name
) -> int:
    """Until SIGTERM, or until the last weights of the run are evaluated."""
    endpoints.check(broker)
    _check_given(sets)
    limits.for_peer("an evaluator")
    own_key = keyring.from_file(key, "evaluator")
    prefixes = allowing.allowed(allow)
    os.nice(_NICE)
    torch.set_num_threads(1)

    async def main() -> int:
        inc = process.incarnation()
        logs.about(inc=inc, name=name)
        registry = web.registry("evaluator")
        metrics = EvaluatorMetrics(registry)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            end = EvaluatorEnd(broker, name=name, inc=inc, context=context, key=own_key)
            port = web.serve(
                registry,
                host=metrics_host,
                port=metrics_port,
                healthy=lambda: "" if end.link.welcome else "no broker has welcomed it",
            )
            if port is not None:
                log.info("metrics at port %d", port)
            end.port = web.told(metrics_host, port, broker)
            end.link.reports = logs.reports()
            await _evaluate(end, out=out, sets=sets, metrics=metrics, prefixes=prefixes)
        finally:
            context.destroy(linger=500)
        return process.OK

    with contextlib.nullcontext() if out is None else claim.claim(out, "evaluator"):
        return process.run_async(main)


async def _evaluate(
    end: EvaluatorEnd, *, out: Path | None, sets: dict[str, Any], metrics: EvaluatorMetrics,
    prefixes: Sequence[str],
) -> None:  # fmt: skip
    async with asyncio.TaskGroup() as group:
        link = group.create_task(end.link.run(), name="link")
        pulse = _Pulse(end)
        watch = group.create_task(notify.Watch(pulse).loop(), name="notify")
        shared = await _shared(end)
        suggested = shared.get("evaluate", {})
        run = config.from_shared({**shared, "evaluate": {**suggested, **sets}})
        allowing.check(run, prefixes)
        logs.about(run=run.run.name)
        evaluator.check(run.env)
        spaces = probe(run.env)
        end.open((spaces.digest(), str(spaces)))
        try:
            pulse.evaluator = Evaluator(end, run, spaces, out=out, metrics=metrics)
            await pulse.evaluator.run()
            log.info("the run is over: %s", end.over)
        finally:
            end.leave(end.over or "stopped")
            watch.cancel()
            link.cancel()


async def _shared(end: EvaluatorEnd) -> dict[str, Any]:
    """The run, once a broker answers."""
    patience: float | None = _PATIENCE_S
    while end.run is None:
        end.news.clear()
        try:
            async with asyncio.timeout(patience):
                await end.news.wait()
        except TimeoutError:
            log.info("no broker answers at %s yet", end.link.endpoint)
            patience = None
    return end.run


def _check_given(sets: dict[str, Any]) -> None:
    """ConfigError before anything starts, not once a broker has answered."""
    for key, value in sets.items():
        kind = config.SECTIONS["evaluate"][key].type
        try:
            msgspec.convert(value, kind)
            finite = toml.portable(value)
        except msgspec.ValidationError:
            finite = False
        if not finite:
            option = key.replace("_", "-")
            raise config.ConfigError(f"--{option} {value}: it must be {toml.allowed(kind)}")


class Evaluator:
    """One run's evaluations, one after another."""

    def __init__(
        self,
        end: EvaluatorEnd,
        run: config.Run,
        spaces: Spaces,
        *,
        out: Path | None,
        metrics: EvaluatorMetrics,
    ) -> None:
        self._end, self._run, self._spaces, self._metrics = end, run, spaces, metrics
        self._keep = Keep(out, run, spaces) if out is not None else None
        # In float32, as the weights are kept: a score is that of the checkpoint.
        self._policy = Policy(run.model, spaces, seed=run.evaluate.seed, precision="float32")
        self._began = time.monotonic()
        self.game: Game | None = None  # the evaluation that is being played
        self._over_at = 0.0  # when we heard that the run is over; 0 = not yet

    async def run(self) -> None:
        """Until the run is over and its last weights are evaluated, if that can be in time."""
        due = 0.0
        while (blob := await self._next(due)) is not None:
            due = time.monotonic() + self._run.evaluate.every_s
            await self._one(blob)

    async def _next(self, due: float) -> Blob | None:
        """The newest weights, once it is time; None = the run is over and these are known."""
        end = self._end
        while self._left() > 0:
            wait = due - time.monotonic()
            if end.blob is not None and (wait <= 0 or (end.over and not end.fetching)):
                return end.take_blob()
            if end.over and end.blob is None and not end.fetching:
                return None
            # While they are fetched at the end, or it is not time yet.
            await self._news(self._left() if end.over else max(wait, 0.0) or math.inf)
        return None

    async def _one(self, blob: Blob) -> None:
        """What fails in an environment costs this evaluation only."""
        policy = self._policy
        self._end.acts_with(blob.announce.version, policy.load(blob))
        began = time.monotonic()
        try:
            scores = await self._play()
        except (EnvError, ValueError) as error:  # the network may make no numbers any more
            self._metrics.failures.inc()
            log.error(
                "version %d is not evaluated: %s", policy.version, error,
                extra={"traceback": users_code.traceback_of(error)},
            )  # fmt: skip
        except evaluator.StoppedError:
            log.info("version %d is not evaluated: the run is over", policy.version)
        else:
            self._report(blob, scores, time.monotonic() - began)

    async def _play(self) -> Scores:
        """At the end of the run it is left for the last weights, if there are newer ones."""
        run = self._run
        game = Game(
            self._policy,
            run.env,
            self._spaces,
            run.evaluate,
            timeout_s=run.actor.step_timeout_s,
            tell=self._end.news.set,
        )
        self.game = game
        game.start()
        try:
            while not game.done:
                if self._left() <= 0 or (self._end.over and self._end.blob is not None):
                    raise evaluator.StoppedError
                game.check()
                await self._news(min(1.0, self._left()))
            return game.result()
        finally:
            self.game = None
            game.stop()

    async def _news(self, seconds: float) -> None:
        """Wait for something new, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
                await self._end.news.wait()
        self._end.news.clear()

    def _left(self) -> float:
        """Seconds that there are still; the end of the run does not wait for ever."""
        if not self._end.over:
            return math.inf
        self._over_at = self._over_at or time.monotonic()
        return self._over_at + LAST_S - time.monotonic()

    def _report(self, blob: Blob, scores: Scores, seconds: float) -> None:
        version, known = blob.announce.version, interval.of(scores.returns)
        # Before the first batch nothing was trained; else the learner has to have said so.
        steps = self._end.trained_steps(version) if version else 0
        line = {
            "t": round(self._moment(), 3),
            "version": version,
            **({} if steps is None else {"trained_steps": steps}),
            "episodes": len(scores.returns),
            **{name: _rounded(value) for name, value in known._asdict().items()},
            "length": round(sum(scores.lengths) / len(scores.lengths), 3),
            "greedy": self._run.evaluate.greedy,
            "seconds": round(seconds, 3),
        }
        self._metrics.show(line)
        self._end.stats = {
            name: float(value)
            for name, value in line.items()
            if name in ("version", "mean", "low", "high") and value is not None
        }
        spread = "" if known.low is None else f" ({known.low:.2f} to {known.high:.2f})"
        log.info(
            "version %d: return %.2f%s, %d episodes in %.1f s",
            version, known.mean, spread, len(scores.returns), seconds,
        )  # fmt: skip
        if self._keep is not None:
            self._keep.add(blob, line)

    def _moment(self) -> float:
        clock = self._end.clock()
        if clock is None:
            clock = time.monotonic() - self._began
        return clock if self._keep is None else self._keep.moment(clock)


@dataclass(slots=True)
class _Pulse:
    """An evaluation must go on; between two of them there is no work."""

    end: EvaluatorEnd
    evaluator: Evaluator | None = None  # None = its environment is not known yet

    def __call__(self) -> notify.Pulse:
        link, mean = self.end.link, self.end.stats.get("mean")
        game = self.evaluator.game if self.evaluator is not None else None
        text = "" if link.welcome is not None else f"no broker answers at {link.endpoint}; "
        if mean is not None:
            text += f"version {self.end.stats['version']:.0f}: return {mean:.2f}; "
        return notify.Pulse(
            ready=link.welcome is not None and self.evaluator is not None,
            moved=game.moved if game is not None else None,
            turns=(link.turns,),
            idle=game is None,
            text=text + ("waits for weights" if game is None else "plays"),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def guarded(broker: str, **options: Any) -> int:
    """`evaluate`, with every expected failure as one line and its exit status."""
    status = guard.guarded(functools.partial(evaluate, broker, **options))
    if os.nice(0) >= _NICE:
        # All is written and said. To take an interpreter down is work, for which a busy machine
        # would let us wait for seconds at this priority.
        logging.shutdown()
        os._exit(status)
    return status
