"""`headrace train`: broker, learner and samplers on this machine, until the goal or a limit.

fork broker  ->  import torch, once  ->  fork learner, samplers, evaluator  ->  watch, restart, wait
->  samplers end when the learner says the run is over, the evaluator when it has played the last
weights  ->  end the broker  ->  summary
"""

import importlib
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.broker.peers.evaluator import LAST_S
from headrace.launch.config import keyring, starts, unused_keys
from headrace.launch.local.child_plans import ChildPlans
from headrace.launch.local.children import Child, Children, GaveUpError
from headrace.launch.monitor.rates import totals
from headrace.launch.monitor.terminal import CapturedTerminal
from headrace.launch.process import folder_lock, logs, runtime
from headrace.launch.process.memory_use import ProcessTree
from headrace.launch.results import learning_curve

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_MEMORY_EVERY_S = 1.0
# The learner: from its goodbye, which ends the samplers, to the end of its process.
_LEARNER_ENDS_WITHIN_S = 3.0
# The evaluator: once it is asked to, or its time is up.
_EVALUATOR_ENDS_WITHIN_S = 3.0


def train(start: starts.Start, *, quiet: bool, evaluate: bool = False, record: bool = False) -> int:
    """Trains a run on this machine; returns the exit status. `evaluate`: an evaluator plays beside
    it. `record`: every batch is kept."""
    started, asked = runtime.started_at(), runtime.StopRequested()
    run, out = start.run, start.out
    logs.start("train", quiet=True)
    if not quiet:  # what a sampler measured and chose is worth a line beside the view
        logging.getLogger("headrace.actors.stepping.choose").setLevel(logging.INFO)
    # Before numpy and torch are imported: one thread each, or their pools fight over the cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    problem = _folder_problem(start)
    if problem:
        log.error("%s", problem)
        return runtime.YOUR_INPUT
    for role in ("broker", "learner", "actor", "watcher", *(["evaluator"] if evaluate else [])):
        keyring.key(run, role, None)  # each process reads its own; what is wrong is said now
    with folder_lock.lock_folder(out, "train", patience_s=0.0):
        with folder_lock.lock_folder(out, "learner-0"):
            pass  # a learner of a run that has just been killed has ended by now
        if start.resume and (complete := starts.finished(run.stop, out)):
            log.warning("%s", complete)
            return runtime.OK
        return _begin(start, quiet, started, asked, evaluate=evaluate, record=record)


def _begin(
    start: starts.Start,
    quiet: bool,
    started: float,
    asked: runtime.StopRequested,
    *,
    evaluate: bool,
    record: bool,
) -> int:
    """Starts in a folder that is locked for us."""
    out = start.out
    try:
        start.keep()
    except OSError as error:
        log.error("cannot write the run's folder: %s; choose another with --out", error)
        return runtime.YOUR_INPUT
    start.log_changes()
    unused_keys.warn(start.run)
    # Reports of processes that are gone; a resumed run continues its history and its ledger.
    for name in ("learner.json", "broker.json", "summary.json"):
        (out / name).unlink(missing_ok=True)
    if not start.resume:
        for name in ("history.jsonl", "evaluations.jsonl", "curve.png"):
            (out / name).unlink(missing_ok=True)
        for name in ("ledger", "best", "record"):
            shutil.rmtree(out / name, ignore_errors=True)
    # A socket's path must be short, so it does not lie in the run's folder.
    sockets = Path(tempfile.mkdtemp(prefix="headrace-"))
    try:
        return _Local(
            start,
            quiet,
            started,
            asked,
            f"ipc://{sockets}/broker",
            evaluate=evaluate,
            record=record,
        ).run()
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _folder_problem(start: starts.Start) -> str:
    there = starts.has_checkpoints(start.out)
    if there and not start.resume:
        return (
            f"{start.out} holds a run already: continue it with --resume, or choose another with"
            " --out"
        )
    if start.resume and not there:
        return f"nothing to resume in {start.out}: it has no checkpoints; leave out --resume"
    return ""


class _Local:
    """Runs one `headrace train`."""

    def __init__(
        self,
        start: starts.Start,
        quiet: bool,
        started: float,
        asked: runtime.StopRequested,
        endpoint: str,
        *,
        evaluate: bool,
        record: bool,
    ) -> None:
        self.given = start.run
        self.out = start.out
        self.quiet = quiet
        # When the run began, by its clock: earlier starts count, the time between does not.
        self.began = started - learning_curve.ended_at(start.out / "history.jsonl")
        self.asked = asked  # the user wants us to end
        self.endpoint = endpoint
        self.children = Children()
        self.tree = ProcessTree()
        self.learner: Child
        self.broker: Child
        self.actors: list[Child] = []
        self.evaluate = evaluate
        self.plans = ChildPlans(
            start.run,
            start.out,
            endpoint,
            resume=start.resume,
            record=record,
            started=started,
            began=self.began,
        )
        self.evaluators: list[Child] = []  # one or none
        self.left: list[tuple[float, Child]] = []  # these that ended well, and when
        self.steps_seen: list[tuple[float, float]] = []  # (time, sampled steps), for the rate

    def run(self) -> int:
        if not self.quiet:  # it takes a moment until there is anything to show
            words = f"headrace {self.given.run.name}: broker, learner and samplers are starting"
            print(f"{words}; folder {self.out}", file=sys.stderr)  # noqa: T201
        # Before the first fork: children write where the live view will move.
        terminal = CapturedTerminal() if not self.quiet and sys.stderr.isatty() else None
        try:
            failed = self._live(terminal)
            self._end()
        finally:
            if terminal is not None:
                terminal.close()
        return self._conclude(failed)

    def _live(self, terminal: CapturedTerminal | None) -> str:
        """Runs from the first process to the end of training; returns why it had to give up, or
        ""."""
        try:
            if self._start():
                self._watch(terminal)
        except GaveUpError as error:
            return str(error)
        return ""

    # ---- start ----------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Starts all processes; False = asked to stop before all were started."""
        count, plans = self.given.actor.count, self.plans
        self.broker = self.children.fork(*plans.broker())
        wanted = [plans.learner(), *map(plans.actor, range(count))]
        wanted += [plans.evaluator()] if self.evaluate else []
        self.learner, *rest = self.children.fork_together(wanted, _import_roles)
        self.actors, self.evaluators = rest[:count], rest[count:]
        return not self.asked

    # ---- run ------------------------------------------------------------------------------------

    def _watch(self, terminal: CapturedTerminal | None) -> None:
        """Watches until the learner has ended for good, or somebody asks us to stop."""
        from headrace.launch.monitor.live_view import LiveView
        from headrace.launch.monitor.status_client import StatusClient

        watcher = StatusClient(self.endpoint, keyring.key(self.given, "watcher", None))
        view = LiveView(
            run=self.given.run.name,
            goal=self.given.stop.return_,
            began=self.began,
            quiet=self.quiet,
            terminal=terminal,
        )
        memory_at = 0.0
        try:
            while not self.asked and self.learner.status is None:
                watcher.ask()
                time.sleep(_LOOK_EVERY_S)
                watcher.receive()
                self._saw(watcher.status)
                view.show(watcher.status)
                if time.monotonic() > memory_at:
                    memory_at = time.monotonic() + _MEMORY_EVERY_S
                    self.tree.measure(self.children.alive())
                for child in self.children.reap():
                    if not self._expected(child):
                        self.children.restart(child)
                self._bring_back()
        finally:
            view.close()
            watcher.close()

    def _expected(self, child: Child) -> bool:
        """Says whether a child ended because it should; GaveUpError for wrong input, which starting
        again does not cure."""
        if child in self.evaluators and child.status not in (runtime.OK, None):
            self._mourn(child)
            return True
        if child.status == runtime.YOUR_INPUT:
            raise GaveUpError(f"{child.name} cannot work with this run; its line above says why")
        if child is self.learner:
            return child.status in (runtime.OK, runtime.LIMIT)
        if child in (*self.actors, *self.evaluators) and child.status == runtime.OK:
            # As it should, if the learner said that the run is over; it ends a moment later then.
            self.left.append((time.monotonic(), child))
            return True
        return False

    def _mourn(self, evaluator: Child) -> None:
        """Restarts an evaluator, or goes on without one: a run does not end because nobody looks
        on."""
        try:
            if evaluator.status != runtime.YOUR_INPUT:
                self.children.restart(evaluator)
                return
            log.warning("evaluator cannot work with this run; its line above says why")
        except GaveUpError as error:
            log.warning("%s", error)
        log.warning("the run goes on without evaluations")

    def _bring_back(self) -> None:
        """Restarts samplers that somebody sent away: the learner is still here, so the run is not
        over."""
        for since, child in list(self.left):
            if time.monotonic() - since > _LEARNER_ENDS_WITHIN_S and self.learner.status is None:
                self.left.remove((since, child))
                self.children.restart(child)

    def _saw(self, status: dict[str, Any]) -> None:
        if status:
            self.steps_seen.append((time.monotonic(), totals(status).get("env_steps", 0.0)))

    # ---- end ------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stops the learner first, it writes the checkpoint and says goodbye; then samplers; broker
        last."""
        stop = self.children.stop
        if hasattr(self, "learner"):
            finished = self.learner.status in (runtime.OK, runtime.LIMIT) and not self.asked
            if not finished:  # then nobody waits for a last evaluation either
                stop(self.evaluators, timeout_s=_EVALUATOR_ENDS_WITHIN_S)
            stop([self.learner], timeout_s=30.0)
        self.children.wait(self.actors, timeout_s=1.0)
        stop(self.actors, timeout_s=self.given.actor.drain_s + 5.0)
        self._last_evaluation()
        if hasattr(self, "broker"):
            stop([self.broker], timeout_s=5.0)

    def _last_evaluation(self) -> None:
        """Waits for the evaluator, which knows that the run is over, and when to give up; a user
        who asks need not wait."""
        deadline = time.monotonic() + LAST_S + _EVALUATOR_ENDS_WITHIN_S
        while not self.asked and time.monotonic() < deadline:
            if all(child.status is not None for child in self.evaluators):
                return
            self.children.wait(self.evaluators, timeout_s=_LOOK_EVERY_S)
        self.children.stop(self.evaluators, timeout_s=_EVALUATOR_ENDS_WITHIN_S)

    def _conclude(self, failed: str) -> int:
        from headrace.launch.local import summary

        statuses = [child.status for child in self.children.all]
        if failed:
            log.error("%s", failed)
            return runtime.YOUR_INPUT if runtime.YOUR_INPUT in statuses else runtime.OUR_FAULT
        try:
            result = summary.write(
                self.given, self.out, began=self.began, tree=self.tree, sampled=self.steps_seen
            )
        except OSError as error:
            log.error("the run's summary is not complete: %s", error)
            return self._unreported()
        if not self.quiet:
            print(summary.words(result, self.out), file=sys.stderr)  # noqa: T201
        if not (self.out / "learner.json").is_file():
            return self._unreported()
        goal = self.given.stop
        if result["stop_reason"] == "return":
            return runtime.OK
        limited = result["stop_reason"] in ("steps", "seconds") and goal.return_ is None
        limited = limited and result["trained_steps"] > 0
        return runtime.OK if limited else runtime.LIMIT

    def _unreported(self) -> int:
        """Returns the exit status by how the learner ended, where its report cannot say."""
        learner = getattr(self, "learner", None)
        good = learner is not None and learner.status == runtime.OK and not self.asked
        return runtime.OK if good else runtime.LIMIT


def _import_roles() -> None:
    """Imports what learner, samplers and evaluator share: above all torch, which takes most of a
    second."""
    for module in ("headrace.launch.roles.sampler", "headrace.launch.roles.learner"):
        importlib.import_module(module)
