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
from dataclasses import dataclass
from pathlib import Path

from headrace.broker import durable
from headrace.launch.config import allowed_code, keyring, run_file, starts
from headrace.launch.local import train as one_run
from headrace.launch.local.child_plans import actor_seed
from headrace.launch.local.children import Child, Children, GaveUpError, Plan
from headrace.launch.policies.split import PolicyRun
from headrace.launch.process import folder_lock, logs, runtime, shown_tracebacks
from headrace.launch.roles.options import PeerOptions

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
# From the learner's goodbye, which ends the samplers, to the end of its run's process.
_RUNS_END_WITHIN_S = 10.0
_STOPPED_WITHIN_S = 60.0
_HEAD = "# The run of one policy; headrace train made it from the file that names them all."


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the runs."""

    quiet: bool = False
    record: bool = False
    web: int | None = None  # the page of the first is served there, the next one's a port above
    resume: bool = False


@dataclass(frozen=True, slots=True)
class _Policy:
    """Holds one policy's run, and where its broker listens."""

    name: str
    start: starts.Start
    endpoint: str
    web: int | None

    @property
    def out(self) -> Path:
        return self.start.out


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
            _policy(one, out, f"ipc://{sockets}/{number}", number, options)
            for number, one in enumerate(policies)
        ]
        return _Several(found, options, asked).run()


def _policy(one: PolicyRun, out: Path, endpoint: str, number: int, options: Options) -> _Policy:
    path = out / f"{one.name}.toml"
    run_file.build({**one.tables}, one.sets, source=path.name)
    durable.write(path, run_file.text(one.tables, head=_HEAD))
    start = starts.begin(str(path), one.sets, out / one.name, resume=options.resume)
    web = options.web
    return _Policy(one.name, start, endpoint, web + number if web else web)


class _Several:
    """Runs one `headrace train` of several policies."""

    def __init__(
        self, policies: Sequence[_Policy], options: Options, asked: runtime.StopRequested
    ) -> None:
        self.policies = policies
        self.options = options
        self.asked = asked  # the user wants us to end
        self.children = Children()
        self.runs: list[Child] = []  # in the order of the policies
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
            self.runs.append(self.children.fork(*self._run_of(one)))
        count = self.policies[0].start.run.actor.count
        plans = [self._sampler(index) for index in range(count)]
        self.samplers = self.children.fork_together(plans, _import_sampler)
        return not self.asked

    def _run_of(self, one: _Policy) -> Plan:
        options = one_run.Options(
            quiet=True,
            evaluate=False,
            record=self.options.record,
            web=one.web,
            endpoint=one.endpoint,
        )
        again = ["train", str(one.out / "run.toml"), "--out", str(one.out), "--resume", "--quiet"]
        again += ["--no-evaluate", "--endpoint", one.endpoint, *["--record"] * options.record]
        return Plan(one.name, lambda: one_run.train(one.start, options), again)

    def _sampler(self, index: int) -> Plan:
        name, first = f"actor-{index}", self.policies[0].start.run
        seed = actor_seed(first.run.seed, index)
        peers = [
            PeerOptions(
                one.endpoint,
                name,
                ledger=one.out / "ledger",
                key=keyring.path(first, "actor") if first.security.curve else None,
                allow=allowed_code.names(one.start.run),
            )
            for one in self.policies
        ]

        def role() -> int:
            from headrace.launch.policies import sampler

            return sampler.sample(peers, seed=seed)

        again = ["actor", "--seed", str(seed + 1000), "--name", name]
        for peer in peers:
            again += ["--broker", peer.broker, "--ledger", str(peer.ledger)]
        again += [] if peers[0].key is None else ["--key", str(peers[0].key)]
        again += allowed_code.allow_options(first)
        return Plan(name, role, again)

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
        if child in self.runs:
            if child.status is not None and child.status < 0:
                self.children.restart(child)
            return
        self.left.append((time.monotonic(), child))

    def _bring_back(self) -> None:
        """Restarts samplers, unless they ended because runs do."""
        for since, child in list(self.left):
            if child.status == runtime.OK and time.monotonic() - since < _RUNS_END_WITHIN_S:
                continue
            self.left.remove((since, child))
            if all(run.status is None for run in self.runs):
                self.children.restart(child)
            elif all(sampler.status is not None for sampler in self.samplers):
                raise GaveUpError(
                    "no sampler is left, and one that starts now has no weights of what is over"
                )

    def _end(self) -> None:
        """Ends the runs first, each writes its checkpoint and says goodbye; then samplers."""
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
        if not self.options.quiet:
            from headrace.launch.policies.views import last_words

            for one in self.policies:
                print(last_words(one.name, one.start.run, one.out), file=sys.stderr)  # noqa: T201
        return max((abs(status or 0) for status in statuses), default=runtime.LIMIT)


def _import_sampler() -> None:
    """Imports what samplers share: above all torch, which takes most of a second."""
    importlib.import_module("headrace.launch.policies.sampler")
