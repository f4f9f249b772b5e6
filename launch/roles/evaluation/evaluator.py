"""An evaluator process, put together: it plays the newest weights and keeps the best.

    the loop   consumes weights, produces scores; waits until it is time and there are new weights
    a thread   plays; an environment that hangs holds up nobody but its own evaluation

It asks for no credit and nobody waits for it. It runs with low priority: samplers go first.
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from headrace.actors import evaluator
from headrace.actors.envs.make import look_at
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.broker.transport import endpoints
from headrace.launch.config import allowed_code as allowing
from headrace.launch.config import keyring, run_file, shared_run, toml_text
from headrace.launch.process import descriptors, folder_lock, logs, runtime, sd_notify
from headrace.launch.results import loaded_run
from headrace.launch.roles import gone_broker
from headrace.launch.roles.evaluation.evaluation_loop import EvaluationLoop
from headrace.launch.roles.evaluation.evaluation_results import EvaluatorMetrics
from headrace.launch.roles.evaluation.partners import BESIDE, company
from headrace.launch.roles.options import PeerOptions
from headrace.launch.roles.role import Role

log = logging.getLogger(__name__)

# A tenth of a busy core; half as much as a sampler gets where evaluate.share is large: somebody
# waits for what an evaluation says then.
_NICE, _NICE_HURRIED, _LARGE_SHARE = 10, 3, 0.1
_PATIENCE_S = 2.0  # without an answer, before we say so


def evaluate(
    options: PeerOptions, *, out: Path | None, beside: Sequence[str] = (), done: Sequence[Path] = ()
) -> int:
    """Evaluates until SIGTERM, or until the last weights of the run are evaluated; returns the exit
    status, or ends the process. `beside`: the brokers of policies that play in the same
    environments; `done`: folders of such that learn no more."""
    priority = os.nice(0)
    status = _evaluate_run(options, out, beside, done)
    if os.nice(0) > priority:
        # All is written and said. To take an interpreter down is work, which at this priority
        # takes seconds on a busy machine.
        logging.shutdown()
        os._exit(status)
    return status


@logs.one_line_errors(ValueError)  # of a network that cannot be made
def _evaluate_run(
    options: PeerOptions, out: Path | None, beside: Sequence[str], done: Sequence[Path]
) -> int:
    for address in (options.broker, *beside):
        endpoints.check(address)
    _check_given(options.sets)
    descriptors.for_peer("an evaluator")
    key = keyring.from_file(options.key, "evaluator")
    prefixes = allowing.allowed(options.allow)
    os.nice(max(0, _NICE_HURRIED - os.nice(0)))  # it may have begun anew
    torch.set_num_threads(1)

    async def main() -> int:
        with Role("evaluator", name=options.name) as role:
            metrics = EvaluatorMetrics(role.registry)
            end, *others = (
                EvaluatorEnd(
                    address, name=options.name, inc=role.inc, context=role.context, key=key
                )
                for address in (options.broker, *beside)
            )
            role.attach(end, options)
            for other in others:
                other.stats = dict(BESIDE)
            await _evaluate(
                role,
                end,
                others,
                brokers=options.brokers,
                done=done,
                out=out,
                sets=options.sets,
                metrics=metrics,
                prefixes=prefixes,
            )
        return runtime.OK

    with contextlib.nullcontext() if out is None else folder_lock.lock_folder(out, "evaluator"):
        return gone_broker.run(main)


async def _evaluate(
    role: Role,
    end: EvaluatorEnd,
    others: Sequence[EvaluatorEnd],  # of policies that play beside this one
    *,
    brokers: str,  # all of this one's run
    done: Sequence[Path],
    out: Path | None,
    sets: Mapping[str, Any],
    metrics: EvaluatorMetrics,
    prefixes: Sequence[str],
) -> None:
    async with asyncio.TaskGroup() as group:
        links = [group.create_task(one.link.run(), name="link") for one in (end, *others)]
        links.append(group.create_task(gone_broker.watch(end.link, brokers), name="gone"))
        reading = _EvaluatorReading(end)
        watch = group.create_task(role.watch(reading).loop(), name="notify")
        check = functools.partial(allowing.check, prefixes=prefixes)
        run = await _told_run(end, sets, check, parts=1 + len(others) + len(done))
        runs = [await _told_run(one, {}, check) for one in others]
        logs.set_identity(run=run.run.name)
        if run.evaluate.share < _LARGE_SHARE:
            os.nice(_NICE - _NICE_HURRIED)
        evaluator.check(run.env)
        spaces, agents, _ = look_at(run.env)
        if run.evaluate.against:
            evaluator.check_others(run.env, agents)
        end.open((spaces.digest(), str(spaces)))
        try:
            partners, players = company(run, [*zip(others, runs, strict=True)], done, check)
            reading.evaluator = EvaluationLoop(
                end,
                run,
                spaces,
                out=out,
                metrics=metrics,
                against=loaded_run.opponent(run.evaluate, spaces, check),
                others=players,
                partners=partners,
            )
            await reading.evaluator.run()
            log.info("the run is over: %s", end.over)
        finally:
            for one in (end, *others):
                one.leave(end.over or "stopped")
            for task in (watch, *links):
                task.cancel()


async def _told_run(
    end: EvaluatorEnd, sets: Mapping[str, Any], check: loaded_run.Check, *, parts: int = 1
) -> run_file.Run:
    """Returns the run, once a broker tells it. `parts`: policies of it, each with an evaluator;
    they share what evaluations may take."""
    shared = await _shared(end)
    run = shared_run.from_shared({**shared, "evaluate": {**shared.get("evaluate", {}), **sets}})
    check(run)
    evaluate = msgspec.structs.replace(run.evaluate, share=run.evaluate.share / parts)
    return msgspec.structs.replace(run, evaluate=evaluate)


async def _shared(end: EvaluatorEnd) -> dict[str, Any]:
    """Returns the run, once a broker answers."""
    patience: float | None = _PATIENCE_S
    while end.weights.run is None:
        end.news.clear()
        try:
            async with asyncio.timeout(patience):
                await end.news.wait()
        except TimeoutError:
            log.info("no broker answers at %s yet", end.link.endpoint)
            patience = None
    return end.weights.run


def _check_given(sets: Mapping[str, Any]) -> None:
    """Raises ConfigError for a wrong option before anything starts, not once a broker has
    answered."""
    for key, value in sets.items():
        kind = run_file.SECTIONS["evaluate"][key].type
        try:
            msgspec.convert(value, kind)
            finite = toml_text.portable(value)
        except msgspec.ValidationError:
            finite = False
        if not finite:
            option = key.replace("_", "-")
            raise run_file.ConfigError(f"--{option} {value}: it must be {toml_text.allowed(kind)}")


@dataclass(slots=True)
class _EvaluatorReading:
    """Reads how an evaluator is: an evaluation must go on; between two of them there is no work."""

    end: EvaluatorEnd
    evaluator: EvaluationLoop | None = None  # None = its environment is not known yet

    def __call__(self) -> sd_notify.WatchdogReading:
        link, mean = self.end.link, self.end.stats.get("mean")
        game = self.evaluator.game if self.evaluator is not None else None
        text = "" if link.welcome is not None else f"no broker answers at {link.endpoint}; "
        if mean is not None:
            text += f"version {self.end.stats['version']:.0f}: return {mean:.2f}; "
        return sd_notify.WatchdogReading(
            ready=link.welcome is not None and self.evaluator is not None,
            moved=game.last_step_at if game is not None else None,
            turns=(link.loop_turns,),
            idle=game is None,
            text=text + ("waits for weights" if game is None else "plays"),
        )
