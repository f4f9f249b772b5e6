"""The processes of `headrace train`, until the goal or a limit.

fork broker  ->  import torch, once  ->  fork learner, samplers, evaluator  ->  watch, restart, wait
->  samplers end when the learner says the run is over, the evaluator when it has played the last
weights  ->  end the broker  ->  summary
"""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from headrace.broker.peers.evaluator import LAST_S
from headrace.launch.config import keyring, starts
from headrace.launch.local.child_plans import ChildPlans, import_roles
from headrace.launch.local.children import Child, Children, GaveUpError
from headrace.launch.local.options import Options
from headrace.launch.local.part_costs import BROKER, LEARNER, SAMPLER, PartCosts
from headrace.launch.monitor.rates import totals
from headrace.launch.monitor.terminal import CapturedTerminal
from headrace.launch.process import runtime
from headrace.launch.process.memory_use import ProcessTree
from headrace.launch.results import learning_curve

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_MEMORY_EVERY_S = 1.0
# The learner: from its goodbye, which ends the samplers, to the end of its process.
_LEARNER_ENDS_WITHIN_S = 3.0
# Another's learner: once all of them are asked to stop.
_LEARNER_STOPS_WITHIN_S = 5.0
# Beyond actor.drain_s. A node kills its samplers, and ends its relay, before that.
_SAMPLER_ENDS_WITHIN_S, _NODE_ENDS_WITHIN_S = 5.0, 20.0
# The evaluator: once it is asked to, or its time is up.
_EVALUATOR_ENDS_WITHIN_S = 3.0
# A sink: it sends the last figures, pictures and the best weights.
_SINK_ENDS_WITHIN_S = 30.0


class Processes:
    """Starts, watches and ends those of one run."""

    def __init__(
        self,
        start: starts.Start,
        options: Options,
        brokers: Sequence[str],
        *,
        started: float,
        asked: runtime.StopRequested,
    ) -> None:
        self.given = start.run
        self.out = start.out
        self.quiet = options.quiet
        self.evaluate = options.evaluate
        self.samplers = 0 if options.endpoint else start.run.actor.count  # that it starts
        # One process is to act for several of them: then a node of each broker has them.
        self.by_node = start.run.actor.acting != "local" and sys.platform == "linux"
        # When the run began, by its clock: earlier starts count, the time between does not.
        self.began = started - learning_curve.ended_at(start.out / "history.jsonl")
        self.asked = asked  # the user wants us to end
        self.children = Children()
        self.tree = ProcessTree()
        self.costs = PartCosts()
        self.elsewhere = options.elsewhere
        self.learner: Child | None = None  # not started yet, or somebody else's
        self.brokers: list[Child] = []
        self.actors: list[Child] = []  # samplers, or nodes of them
        self.plans = ChildPlans(
            start,
            brokers,
            record=options.record,
            started=started,
            began=self.began,
            web=options.web,
            beside=options.beside,
            done=options.done,
            allow=options.allow,
        )
        self.evaluators: list[Child] = []  # one or none
        self.sinks: list[Child] = []  # each sends what the run writes to a place
        self.left: list[tuple[float, Child]] = []  # these that ended well, and when
        self.steps_seen: list[tuple[float, float]] = []  # (time, sampled steps), for the rate

    def run(self) -> int:
        if not self.quiet:  # it takes a moment until there is anything to show
            words = f"headrace {self.given.run.name}: broker, learner and samplers are starting"
            page = "" if self.plans.web is None else f"; page http://127.0.0.1:{self.plans.web}/"
            print(f"{words}; folder {self.out}{page}", file=sys.stderr)  # noqa: T201
        # Before the first fork: children write where the live view will move.
        terminal = CapturedTerminal() if not self.quiet and sys.stderr.isatty() else None
        try:
            failed = self._live(terminal)
            self._end()
        finally:
            if terminal is not None:
                terminal.close()
        status = self._conclude(failed)
        # They have waited for the summary.
        self.children.stop(self.sinks, timeout_s=_SINK_ENDS_WITHIN_S)
        for late in (child for child in self.sinks if child.status == -signal.SIGKILL):
            log.warning("%s was too slow: send the rest later", late.name)
        return status

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
        plans, nodes = self.plans, min(self.samplers, len(self.plans.brokers)) * self.by_node
        count = 0 if nodes else self.samplers
        for shard in range(len(plans.brokers)):
            self.brokers.append(self.children.fork(*plans.broker(shard)))
        wanted = [] if self.elsewhere else [plans.learner()]
        wanted += map(plans.actor, range(count))
        wanted += [plans.evaluator()] if self.evaluate else []
        rest = self.children.fork_together(wanted, import_roles)
        if not self.elsewhere:
            self.learner = rest.pop(0)
        self.actors, self.evaluators = rest[:count], rest[count:]
        self.actors += [self.children.start(*plans.node(shard)) for shard in range(nodes)]
        for name in self.given.log.sinks:
            self.sinks.append(self.children.start(*plans.sink(name)))
        return not self.asked

    # ---- run ------------------------------------------------------------------------------------

    def _watch(self, terminal: CapturedTerminal | None) -> None:
        """Watches until the learner has ended for good, or somebody asks us to stop."""
        from headrace.launch.monitor.live_view import LiveView
        from headrace.launch.monitor.status_client import StatusClient

        watcher = StatusClient(
            ",".join(self.plans.brokers), keyring.key(self.given, "watcher", None)
        )
        view = LiveView(
            run=self.given.run.name,
            stop=self.given.stop,
            began=self.began,
            quiet=self.quiet,
            terminal=terminal,
        )
        memory_at = 0.0
        try:
            while not self.asked and self._learns():
                watcher.ask()
                time.sleep(_LOOK_EVERY_S)
                watcher.receive()
                self._saw(watcher.status)
                view.show(watcher.status)
                if time.monotonic() > memory_at:
                    memory_at = time.monotonic() + _MEMORY_EVERY_S
                    self._measure(watcher.status)
                for child in self.children.reap():
                    if not self._expected(child):
                        self.children.restart(child)
                self._bring_back()
        finally:
            view.close()
            watcher.close()

    def _learns(self) -> bool:
        """Tells whether it is still trained, or will be as soon as its learner is back."""
        if self.learner is not None:
            return self.learner.status is None
        return self.elsewhere and not starts.ended(self.out)

    def _measure(self, status: dict[str, Any]) -> None:
        """Looks at what each process uses."""
        self.tree.measure(self.children.alive())
        parts = {broker.pid: BROKER for broker in self.brokers}
        parts |= {} if self.learner is None else {self.learner.pid: LEARNER}
        if not self.by_node:  # which has more than samplers
            parts |= {actor.pid: SAMPLER for actor in self.actors}
        trained = totals(status).get("outcome_trained", 0.0)
        self.costs.look(self.tree.uses, parts, trained, time.monotonic())

    def _expected(self, child: Child) -> bool:
        """Says whether a child ended because it should; GaveUpError for wrong input, which starting
        again does not cure."""
        if child in self.sinks:
            if child.status == runtime.LIMIT:  # a callback wants the run to stop
                self.asked.ask()
            else:
                log.warning("%s ended early; the run goes on, send the rest later", child.name)
            return True
        if child in self.evaluators and child.status not in (runtime.OK, None):
            self._mourn(child)
            return True
        if child.status == runtime.YOUR_INPUT:
            raise GaveUpError(f"{child.name} cannot work with this run; its line above says why")
        if child is self.learner:
            return child.status in (runtime.OK, runtime.LIMIT, runtime.DIVERGED)
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
        if self.given.stop.evaluated:
            raise GaveUpError("evaluator is needed by stop.metric; see its line above")
        log.warning("the run goes on without evaluations")

    def _bring_back(self) -> None:
        """Restarts samplers that somebody sent away: the learner is still here, so the run is not
        over."""
        for since, child in list(self.left):
            if time.monotonic() - since > _LEARNER_ENDS_WITHIN_S and self._learns():
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
        deadline = time.monotonic() + _LEARNER_STOPS_WITHIN_S
        while self.elsewhere and self._learns() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)  # who asked us asked it, too: its report is on its way
        learner = self.learner
        finished = self.elsewhere
        if learner is not None:
            finished = learner.status in (runtime.OK, runtime.LIMIT)
        if self.asked or not finished:  # then nobody waits for a last evaluation either
            stop(self.evaluators, timeout_s=_EVALUATOR_ENDS_WITHIN_S)
        stop([] if learner is None else [learner], timeout_s=30.0)
        self.children.wait(self.actors, timeout_s=1.0)
        ends_s = _NODE_ENDS_WITHIN_S if self.by_node else _SAMPLER_ENDS_WITHIN_S
        stop(self.actors, timeout_s=self.given.actor.drain_s + ends_s)
        self._last_evaluation()
        stop(self.brokers, timeout_s=5.0)

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
                self.given,
                self.out,
                began=self.began,
                tree=self.tree,
                sampled=self.steps_seen,
                costs=self.costs,
            )
        except OSError as error:
            log.error("the run's summary is not complete: %s", error)
            return self._unreported()
        if not self.quiet:
            print(summary.words(result, self.out, self.given.stop), file=sys.stderr)  # noqa: T201
        if not (self.out / "learner.json").is_file():
            return self._unreported()
        return summary.status(result, self.given.stop)

    def _unreported(self) -> int:
        """Returns the exit status by how the learner ended, where its report cannot say."""
        status = None if self.learner is None or self.asked else self.learner.status
        return status if status in (runtime.OK, runtime.DIVERGED) else runtime.LIMIT
