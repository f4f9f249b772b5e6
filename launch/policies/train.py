"""`headrace train` of several policies: a run for each, and samplers that play all of them.

    OUT/NAME.toml    the run file of a policy, from the file that names them all
    OUT/NAME/        its run: folder, broker and learner as of any other

fork a process for each run  ->  fork samplers  ->  watch, restart  ->  when all runs have ended,
samplers end
"""

import importlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.launch.config import allowed_code, keyring
from headrace.launch.local import run_folder
from headrace.launch.local import train as one_run
from headrace.launch.local.child_plans import ChildPlans, actor_seed, learner_again
from headrace.launch.local.children import Child, Children, GaveUpError, Plan
from headrace.launch.local.options import Options as OneRunOptions
from headrace.launch.policies.policy import Options, Policy, begun
from headrace.launch.policies.split import PolicyRun
from headrace.launch.process import folder_lock, logs, runtime, shown_tracebacks
from headrace.launch.roles.options import PeerOptions

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
# From the learner's goodbye, which ends the samplers, to the end of its run's process.
_RUNS_END_WITHIN_S = 10.0
_STOPPED_WITHIN_S = 60.0


def train(policies: Sequence[PolicyRun], out: Path, options: Options) -> int:
    """Trains all of them on this machine; returns the exit status."""
    asked = runtime.StopRequested()
    logs.start("train", quiet=True)
    for library in ("OMP", "OPENBLAS", "MKL"):  # before numpy and torch are imported
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    with (
        folder_lock.lock_folder(out, "train", patience_s=0.0),
        # A socket's path must be short, so it does not lie in the run's folder.
        tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as sockets,
        shown_tracebacks.shared(Path(sockets)),
    ):
        found = [
            begun(one, out, f"ipc://{sockets}/{number}", number, options)
            for number, one in enumerate(policies)
        ]
        learning = [one for one in found if not (options.resume and one.is_done())]
        for one in learning:  # before there are samplers, which write there too
            run_folder.prepare(one.start)
        return _Several(out, found, learning, options, asked).run() if learning else runtime.OK


class _Several:
    """Runs one `headrace train` of several policies."""

    def __init__(
        self,
        out: Path,
        policies: Sequence[Policy],
        learning: Sequence[Policy],
        options: Options,
        asked: runtime.StopRequested,
    ) -> None:
        self.out = out
        self.names = [one.name for one in policies]
        self.policies = learning
        self.done = [one for one in policies if one not in learning]  # they play, and learn no more
        self.options = options
        self.started = runtime.started_at()
        self.asked = asked  # the user wants us to end
        self.children = Children()
        self.runs: list[Child] = []  # in the order of the policies
        self.learner: list[Child] = []  # of those that are trained together; one or none
        self.samplers: list[Child] = []
        self.left: list[tuple[float, Child]] = []  # samplers that have ended, and when

    def run(self) -> int:
        from headrace.launch.policies.views import Views

        failed = ""
        try:
            if self._start():
                with Views([(p.name, p.start.run, p.endpoint) for p in self.policies]) as views:
                    self._watch(views.show if not self.options.quiet else lambda: None)
        except GaveUpError as error:
            failed = str(error)
        self._end()
        return self._conclude(failed)

    def _start(self) -> bool:
        """Starts all processes; False = asked to stop before all were started."""
        for one in self.policies:
            if one.web is not None and not self.options.quiet:
                print(f"{one.name}: page http://127.0.0.1:{one.web}/", file=sys.stderr)  # noqa: T201
            self.runs.append(self.children.fork(*self._run_of(one)))
        count = self.policies[0].start.run.actor.count
        together = self._together
        plans = [self._sampler(index) for index in range(count)]
        plans += [self._learner(together)] if together else []
        started = self.children.fork_together(plans, _import_roles)
        self.samplers, self.learner = started[:count], started[count:]
        return not self.asked

    @property
    def _together(self) -> list[ChildPlans]:
        """Returns the plans of those that one process trains, and that are not done."""
        left = [one for one in self.policies if one.together and one not in self.done]
        return [one.plans(self.started, record=self.options.record) for one in left]

    def _learner(self, plans: Sequence[ChildPlans]) -> Plan:
        def role() -> int:
            from headrace.launch.policies import together

            return together.learn([(one.run, one.learner_options) for one in plans])

        return Plan("learner", role, learner_again(plans))

    def _run_of(self, one: Policy) -> Plan:
        options = OneRunOptions(
            quiet=True,
            evaluate=self.options.evaluate,
            record=self.options.record,
            web=one.web,
            endpoint=one.endpoint,
            elsewhere=one.together,
            beside=[other.endpoint for other in self.policies if other is not one],
            done=[other.out for other in self.done],
            allow=[name for other in self._all for name in allowed_code.names(other.start.run)],
        )
        return Plan(one.name, lambda: one_run.train(one.start, options), self._run_again(one))

    def _run_again(self, one: Policy) -> list[str]:
        """Returns the arguments that start a policy's run again, with policies that are done by
        now."""
        options, words = self.options, ["train", str(one.out / "run.toml"), "--out", str(one.out)]
        words += ["--resume", "--quiet", "--endpoint", one.endpoint, *["--record"] * options.record]
        words += ["--elsewhere"] * one.together
        for other in self.policies:
            if other is not one and other not in self.done:
                words += ["--beside", other.endpoint]
        for other in self.done:
            words += ["--done", str(other.out)]
        words += self._allow_options
        if options.evaluate is not None:
            words.append("--evaluate" if options.evaluate else "--no-evaluate")
        return words

    def _sampler(self, index: int) -> Plan:
        name = f"actor-{index}"
        seed = actor_seed(self.policies[0].start.run.run.seed, index)
        peers, done = self._peers(name), [one.out for one in self.done]

        def role() -> int:
            from headrace.launch.policies import sampler

            return sampler.sample(peers, seed=seed, done=done)

        return Plan(name, role, self._again(name, seed))

    def _peers(self, name: str) -> list[PeerOptions]:
        """Returns the options of a sampler, for each policy that learns."""
        return [
            PeerOptions(
                one.endpoint,
                name,
                ledger=one.out / "ledger",
                key=self._key,
                allow=allowed_code.names(one.start.run),
            )
            for one in self.policies
            if one not in self.done
        ]

    @property
    def _key(self) -> Path | None:
        run = self.policies[0].start.run
        return keyring.path(run, "actor") if run.security.curve else None

    def _again(self, name: str, seed: int) -> list[str]:
        """Returns the arguments that start a sampler again, with policies that are done by now."""
        words = ["actor", "--seed", str(seed + 1000), "--name", name]
        for peer in self._peers(name):
            words += ["--broker", peer.broker, "--ledger", str(peer.ledger)]
        for one in self.done:
            words += ["--done", str(one.out)]
        words += [] if self._key is None else ["--key", str(self._key)]
        return words + self._allow_options

    @property
    def _all(self) -> list[Policy]:
        """Returns those that learn, and those that were done from the start."""
        return [*self.policies, *(one for one in self.done if one not in self.policies)]

    @property
    def _allow_options(self) -> list[str]:
        """Returns what allows all code that the runs name: whoever plays has all of them."""
        return [word for one in self._all for word in allowed_code.allow_options(one.start.run)]

    def _watch(self, show: Callable[[], None]) -> None:
        """Watches until every run has ended, or somebody asks us to stop."""
        while not self.asked and any(child.status is None for child in self.runs):
            show()
            time.sleep(_LOOK_EVERY_S)
            for child in self.children.reap():
                self._ended(child)
            self._bring_back()

    def _ended(self, child: Child) -> None:
        """Restarts a run's process that was killed; keeps in mind samplers that ended."""
        if child.status == runtime.YOUR_INPUT:
            raise GaveUpError(f"{child.name} cannot work with this run; its line above says why")
        if child in self.learner:
            ended = child.status in (runtime.OK, runtime.LIMIT, runtime.DIVERGED)
            if not ended and (plans := self._together):
                child.again = learner_again(plans)
                self.children.restart(child)
            return
        if child in self.runs:
            one = self.policies[self.runs.index(child)]
            if child.status is not None and child.status < 0:
                child.again = self._run_again(one)
                self.children.restart(child)
            else:
                self.done.append(one)
            return
        self.left.append((time.monotonic(), child))

    def _bring_back(self) -> None:
        """Restarts samplers, unless they ended because all runs do."""
        for since, child in list(self.left):
            if child.status == runtime.OK and time.monotonic() - since < _RUNS_END_WITHIN_S:
                continue
            self.left.remove((since, child))
            if any(run.status is None for run in self.runs):
                seed = actor_seed(self.policies[0].start.run.run.seed, self.samplers.index(child))
                child.again = self._again(child.name, seed)
                self.children.restart(child)

    def _end(self) -> None:
        """Ends learner and runs first, they write checkpoints and say goodbye; then samplers."""
        self.children.stop(self.learner, timeout_s=_STOPPED_WITHIN_S)
        self.children.stop(self.runs, timeout_s=_STOPPED_WITHIN_S)
        self.children.wait(self.samplers, timeout_s=1.0)
        drain_s = self.policies[0].start.run.actor.drain_s
        self.children.stop(self.samplers, timeout_s=drain_s + 5.0)

    def _conclude(self, failed: str) -> int:
        statuses = [child.status for child in self.runs]
        if failed:
            log.error("%s", failed)
            wrong = runtime.YOUR_INPUT in [child.status for child in self.children.all]
            return runtime.YOUR_INPUT if wrong else runtime.OUR_FAULT
        from headrace.launch.policies.views import last_words, summarise

        try:
            result = summarise(self.out.name, self.out, self.names)
        except OSError as error:
            log.error("the summary cannot be written: %s", error)
            return runtime.LIMIT
        for one in () if self.options.quiet else self.policies:
            words = last_words(one.name, one.start.run, one.out, result["policies"][one.name])
            print(words, file=sys.stderr)  # noqa: T201
        return max(
            runtime.OUR_FAULT if status is None or status < 0 else status for status in statuses
        )


def _import_roles() -> None:
    """Imports what samplers and learner share: above all torch, which takes most of a second."""
    for module in ("headrace.launch.policies.sampler", "headrace.launch.policies.together"):
        importlib.import_module(module)
