"""The effect of a run's keys on the processes: the parts that each builds, and their settings."""

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch

from headrace.actors.acting.central.client import CentralNetwork
from headrace.actors.envs.make import look_at, make_env, probe
from headrace.actors.evaluation_thread import EvaluationThread
from headrace.actors.stepping import choose
from headrace.actors.stepping.stepper import Frame
from headrace.broker.journal.journal import Journal
from headrace.broker.server.connections.roster import Peer
from headrace.broker.server.server import Server
from headrace.launch.config import allowed_code, run_file, shared_run, starts
from headrace.launch.local.options import Options
from headrace.launch.local.processes import Processes
from headrace.launch.policies.policy import Policy
from headrace.launch.process import logs, runtime, sd_notify
from headrace.launch.results import loaded_run
from headrace.launch.roles import broker, learner, learner_parts, learner_resume, options
from headrace.launch.roles import sampler as actor
from headrace.launch.roles.evaluation import evaluation_loop
from headrace.launch.roles.evaluation.evaluation_results import EvaluationResults
from headrace.launch.roles.options import PeerOptions
from headrace.launch.search import search
from headrace.learner.models.build import build
from headrace.learner.ranks import Ranks
from headrace.learner.train_parts import Turns
from headrace.learner.weights import FlatWeights

T = TypeVar("T")


class Stop(Exception):  # noqa: N818 - ends what was looked at
    pass


def environment(run: run_file.Run, _: Path) -> Any:
    """Its spaces, and its first step."""
    env = make_env(run.env)
    try:
        env.reset(seed=1)
        step = env.step(env.action_space.sample() * 0)
        made = probe(run.env)
        return str(made), made.digest(), made.critic, [str(part) for part in step[:4]]
    finally:
        env.close()


def seen(run: run_file.Run, _: Path) -> str:
    """The spaces of whom the policy plays."""
    return str(probe(run.env))


def sent(run: run_file.Run, _: Path) -> bytes:
    """Returns the weights of a new network as samplers get them."""
    return bytes(FlatWeights(build(run.model, probe(run.env), seed=1)).dump())


def searched(run: run_file.Run, out: Path) -> Any:
    """What is varied, compared by, and trained for each trial."""
    file = out / "file.toml"
    file.write_text(run_file.effective(run))
    limits: dict[str, Any] = {"out": out, "budget_s": 1.0, "most_trials": None, "parallel": 1}
    plan = search.plan(str(file), sets=(), vary=(), metric=None, seeds=(), **limits)
    return plan.ranges, plan.metric, plan.seeds


def stepper(run: run_file.Run, _: Path) -> Any:
    """Which, and with what."""

    def told(kind: str) -> Any:
        frame = SimpleNamespace(settings=[])
        return lambda made, **given: SimpleNamespace(kind=kind, made=made, given=given, frame=frame)

    with contextlib.ExitStack() as patches:
        for kind in ("InlineStepper", "ThreadStepper", "ProcessStepper"):
            patches.enter_context(mock.patch.object(choose, kind, told(kind)))
        return choose.make_stepper(run.actor, run.env, envs=run.unroll.envs, seed=1)


def sampler(run: run_file.Run, folder: Path) -> Any:
    """The streams it asks credit for, its threads, and what the sampler is made of."""
    spaces, end, threads = probe(run.env), mock.Mock(), mock.Mock()
    frame = Frame.empty(spaces, groups=run.actor.groups, envs=run.unroll.envs)
    frame.agents = look_at(run.env).agents
    stand_in = SimpleNamespace(spaces=spaces, frame=frame)
    with (
        mock.patch.object(actor, "make_stepper", lambda *_, **__: stand_in),
        mock.patch.object(torch, "set_num_threads", threads),
        mock.patch.object(runtime, "cores", lambda: 8),
    ):
        made = actor.build(end, run, seed=1, metrics=mock.Mock(), shelf=folder / "weights")
    network: Any = made.policy.network
    central = isinstance(network, CentralNetwork)
    others: Any = made.others
    met = None if others is None else others._draws._opponents
    return (
        None
        if met is None
        else (others._draws._share, met._pick, vars(met._snapshots), len(met._others)),
        end.open.call_args.kwargs["streams"],
        threads.call_args,
        network._choice is None if central else type(network._network).__name__,
        made.policy._explore is None,
        vars(made.batching_wait),
        vars(made.crash_budget),
        {one.largest for one in made._rollouts},
    )


def drained(run: run_file.Run, _: Path) -> Any:
    """Returns how long a sampler waits when asked to end, and which of its unrolls are traced."""
    waits = mock.AsyncMock()
    made = SimpleNamespace(
        run=mock.AsyncMock(side_effect=asyncio.CancelledError), drain=waits, stepper=mock.Mock()
    )
    link = SimpleNamespace(run=lambda: asyncio.sleep(60))
    shared = shared_run.for_peers(run)
    end = mock.Mock(run=shared, link=link, serve=link.run, over="", outbox=[])
    role = mock.Mock(watch=lambda _: SimpleNamespace(loop=link.run))
    with (
        mock.patch.object(actor, "build", lambda *_, **__: made),
        contextlib.suppress(asyncio.CancelledError),
    ):
        options = PeerOptions("ipc:///x", "one", allow=allowed_code.names(run))
        asyncio.run(actor._sample(role, end, options, 1, mock.Mock(), shelf=None, sender=None))
    return waits.call_args, end.journal.trace.call_args


def traced(run: run_file.Run, folder: Path) -> Any:
    """Returns which unrolls the learner and the broker trace."""
    with mock.patch.object(Journal, "trace") as told:
        learning(run, folder)
        served(run, folder)
    return told.call_args_list


def plans(run: run_file.Run, folder: Path) -> Any:
    """The processes of `headrace train`."""
    start = starts.Start(run, folder, folder / "run.toml", ())
    one = Processes(start, Options(), "ipc:///x", started=0.0, asked=mock.Mock())
    children = mock.Mock()
    children.fork_together = lambda wanted, _: list(wanted)
    children.start = lambda name, _: SimpleNamespace(name=name)
    one.children = children
    one._start()
    return [plan.name for plan in (*one.actors, *one.sinks)]


def served(run: run_file.Run, _: Path) -> Any:
    """What the broker's first answer says, and the bounds that it works by."""
    found: dict[str, Any] = {}

    async def answer(server: Any) -> None:
        found["book"] = {
            name: value
            for name, value in vars(server.ledger.state).items()
            if isinstance(value, int | float) and name != "first_tag"
        }
        found["credit"] = vars(server.ledger.state.credit)
        found["balanced"] = server.ledger.state.credit.balance.on
        found["lease_s"] = server.ledger.lease_s
        found["door"] = _plain(vars(server.limits))
        server._replies.send = lambda _, welcome, *__: found.setdefault("welcome", welcome)
        server._admission._welcome(Peer(b"", "actor", "one", 1, 0.0), 0)
        raise Stop

    folder = tempfile.mkdtemp(prefix="hr-")
    try:
        with (
            mock.patch.object(Server, "run", answer),
            mock.patch.object(runtime, "incarnation", lambda: 1),
        ):
            asyncio.run(broker._serve(run, broker.Options(f"ipc://{folder}/b")))
    except* Stop:
        pass
    finally:
        shutil.rmtree(folder)
    return str({**found, "credit": _plain(found["credit"])}).replace(folder, "")


def address(run: run_file.Run, _: Path) -> Any:
    """Where a learner looks for its broker."""
    parser = argparse.ArgumentParser()
    options.learner_arguments(parser)
    given = parser.parse_args(["--run", "cartpole"])
    return options.learner_options(given, run).broker


def learning(run: run_file.Run, folder: Path) -> Any:
    """Device, threads, batches, goal: all that the train loop and its ranks are given."""
    found: dict[str, Any] = {}

    def ranks(**options: Any) -> Any:
        found["ranks"] = options["timeout_s"]
        return Ranks(**options)

    def feed(_: Any, batches: Any, **__: Any) -> Any:
        found["batches"] = [tuple(batch.tensors["action"].shape) for batch in batches]
        found["largest"] = {batch.largest for batch in batches}
        return mock.Mock()

    def train(pieces: Any) -> Turns[str]:
        found["goal"], found["device"] = pieces.goal, str(pieces.device)
        found["ends"] = pieces.progress.ends.maxlen
        found["drawn"] = getattr(pieces.model, "lr_factor", torch.ones(1)).tolist()
        return at_once("stopped")

    def refused(_: Any, error: BaseException) -> int:
        found["refused"] = str(error)
        return runtime.YOUR_INPUT

    stand_ins = {"Ranks": ranks, "train": train, "learner_report": mock.Mock()}
    threads = mock.Mock()
    with contextlib.ExitStack() as patches:
        for name, stand_in in stand_ins.items():
            patches.enter_context(mock.patch.object(learner, name, stand_in))
        patches.enter_context(
            mock.patch.object(learner_resume, "wait_for_broker", lambda *_: at_once(True))
        )
        patches.enter_context(mock.patch.object(learner_parts, "UnrollReceiver", feed))
        patches.enter_context(
            mock.patch.object(learner_parts.LearnerParts, "serve_metrics", lambda _: 0)
        )
        patches.enter_context(mock.patch.object(torch, "set_num_threads", threads))
        patches.enter_context(mock.patch.object(runtime, "StopRequested", lambda: False))
        patches.enter_context(mock.patch.object(runtime, "keep_memory"))
        patches.enter_context(mock.patch.object(sd_notify.Watchdog, "start"))
        patches.enter_context(mock.patch.object(logs, "log_end", refused))
        patches.enter_context(mock.patch.dict(os.environ))
        learner.learn(run, options.LearnerOptions("ipc:///x", folder, resume=False))
        found["processors"] = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    return {**found, "threads": threads.call_args}


def at_once(found: T) -> Turns[T]:
    """Is done in its first turn."""
    yield from ()
    return found


def together(run: run_file.Run, folder: Path) -> Any:
    """Tells whether a process trains it that trains others, too."""
    start = starts.Start(run, folder, folder / "run.toml", ())
    return Policy("one", start, "ipc:///x", None).together


def evaluation(run: run_file.Run, _: Path) -> Any:
    """What an evaluator plays, and when it plays again."""
    scores, asked, due = [], set(), []

    def act(obs: Any, *_: Any, greedy: bool) -> Any:
        rows = len(obs["obs"])
        asked.add((rows, greedy))
        return np.zeros(rows, np.int64), np.zeros(rows, np.float32), None

    policy: Any = SimpleNamespace(version=0, memory=0, previous=False, act=act)

    async def following(_: Any, at: float) -> Any:
        due.append(round(max(0.0, at - time.monotonic()), -1))  # a busy machine takes a second
        return None if len(due) > 2 else "weights"

    async def main() -> None:
        with mock.patch.object(torch, "set_num_threads"):
            spaces = probe(run.env)
            game = EvaluationThread(
                policy,
                run.env,
                spaces,
                run.evaluate,
                against=loaded_run.opponent(run.evaluate, spaces),
                others=loaded_run.seated_others(run.env, run.evaluate),
                timeout_s=1.0,
                tell=lambda: None,
            )
            game._play()
        scores.append(game.result())
        again = evaluation_loop.EvaluationLoop.__new__(evaluation_loop.EvaluationLoop)
        again._run = run
        with (
            mock.patch.object(evaluation_loop.EvaluationLoop, "_next_weights", following),
            mock.patch.object(evaluation_loop.EvaluationLoop, "_evaluate", mock.AsyncMock()),
            mock.patch.object(
                time, "process_time", side_effect=(0.0, 0.0, 0.0, 5000.0)
            ),  # one is dear
        ):
            await again.run()

    asyncio.run(main())
    return scores, asked, due


def best_weights(run: run_file.Run, folder: Path) -> Any:
    """Which of three stay, each better than the one before."""
    spaces = probe(run.env)
    results = EvaluationResults(folder, run, spaces)
    body = FlatWeights(build(run.model, spaces, seed=0)).dump()
    for version in (1, 2, 3):
        blob: Any = SimpleNamespace(announce=SimpleNamespace(version=version), body=body)
        results.add(blob, {"mean": float(version)})
    return sorted(path.name for path in (folder / "best").iterdir())


def _plain(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if isinstance(value, int | float)}
