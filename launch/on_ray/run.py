"""`headrace ray`: broker, learner ranks, evaluator and nodes as agents on a Ray cluster.

    reserve places for broker, evaluator and learner  ->  broker  ->  all others  ->  watch
    ->  the learner ends: the run is over  ->  nodes, evaluator, broker end  ->  give all back

What is lost with its machine, or ends badly, is placed again where Ray finds a place: a node or the
evaluator alone; broker and learner together, with all that works for them. If this process dies,
Ray ends the agents, and with them their commands; started again, it goes on with the run.
"""

import itertools
import logging
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.broker import durable
from headrace.broker.errors import UserError
from headrace.broker.peers.evaluator import LAST_S
from headrace.launch.config import allowed_code, run_file
from headrace.launch.node.restarts import ProcessSlot
from headrace.launch.on_ray import cluster
from headrace.launch.on_ray.agent import Agent, Seat
from headrace.launch.process import folder_lock, forking, logs, runtime

log = logging.getLogger(__name__)

# The words of each role's command, to be filled in.
_PEER = "--broker {broker} --key {folder}/{role}.key --metrics-host {host} --metrics-port 0"
_WORDS = {
    "broker": "broker --run {out}/ray.toml --bind {broker} --set security.curve=true --set"
    " security.keys={folder} --ledger {out}/ledger --metrics-host {host} --metrics-port {third}",
    "learner": "--nnodes {learners} --nproc-per-node {cpus} --local-addr {host} --rdzv-id {meeting}"
    " --rdzv-backend c10d --rdzv-endpoint {first} --rdzv-conf is_host={is_first}"
    f" -m headrace.launch.learner {{out}}/ray.toml --out {{out}} --resume {_PEER}",
    "evaluator": f"evaluate --out {{out}} {_PEER}",
    "actor": f"node --samplers {{cpus}} --ledger {{out}}/ledger {_PEER}",
}
# Of a call that takes no time; of an agent until it answers; of all else that ends.
_CALL_S, _JOINS_WITHIN_S, _CLOSE_S = 30.0, 60.0, 15.0
_SAVE_S = 45.0  # to write a checkpoint, beyond a rank's wait for the others
_OVER_S = 5.0  # when the run is over a node ends with 0, and the learner a moment later
_STOPPED = "143"  # of a learner that was asked to stop; 0 = the run is complete


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the run."""

    address: str
    out: Path  # every machine sees it
    ranks: int  # on each learner machine
    learners: int  # machines
    wait_s: float  # for the places of broker, evaluator and learner


_NOWHERE = Seat("", 0, "", "")


@dataclass(slots=True, eq=False)
class _Post:
    """Holds one agent and its command."""

    name: str  # of its key: ROLE-NUMBER
    cpus: int
    where: int | str  # which of the places reserved, or which machine
    agent: Any
    call: Any  # whose answer is waited for
    joins_by: float
    seat: Seat = _NOWHERE  # it has not joined yet

    @property
    def role(self) -> str:
        return self.name.partition("-")[0]

    @property
    def address(self) -> str:
        return f"{self.seat.host}:{self.seat.port}"


@logs.one_line_errors()
def ray_run(run: run_file.Run, options: Options) -> int:
    """Runs until the learner has ended for good, or somebody asks us to stop; returns the exit
    status."""
    run_file.check_ranks(run, options.ranks * options.learners)
    with folder_lock.lock_folder(options.out, "ray", patience_s=0.0):
        ray = cluster.connect(options.address)
        try:
            return _Driver(run, options, ray).run()
        finally:
            ray.shutdown()


class _Driver:
    """Runs one `headrace ray`."""

    def __init__(self, run: run_file.Run, options: Options, ray: Any) -> None:
        self._run, self._options, self._ray = run, options, ray
        self._asked = runtime.StopRequested()  # after Ray has set handlers of its own
        self._numbers = itertools.count()  # of keys and meetings: none is used twice
        self._slots: dict[int | str, ProcessSlot] = defaultdict(lambda: ProcessSlot(0))
        self._group: Any = None
        self._core: list[_Post] = []  # the broker, and the learner's machines
        self._peers: dict[int | str, _Post] = {}  # nodes and evaluator, by where they are
        self._token = options.out / ".ray.token"
        self._word = uuid.uuid4().hex

    def run(self) -> int:
        """Places all of it, again if broker or learner were lost, until the run is over."""
        status, slot = None, self._slots["core"]
        durable.write(self._options.out / "ray.toml", run_file.effective(self._run))
        durable.write(self._token, self._word)
        while status is None and not self._asked:
            if time.monotonic() < slot.due_at:
                time.sleep(0.1)
                continue
            try:
                slot.started(1, time.monotonic())
                self._place_core()
                status = self._watch()
            except UserError as error:
                raise getattr(error, "cause", error) from None
            except (self._ray.exceptions.RayError, ChildProcessError) as error:
                log.warning("%s; all again in %.1f s", _line(error), slot.ended(time.monotonic()))
            finally:
                self._end(over=status in (runtime.OK, runtime.LIMIT))
        return runtime.LIMIT if status is None else status

    # ---- start ----------------------------------------------------------------------------------

    def _place_core(self) -> None:
        """Starts broker and learner, on places that are taken together."""
        options = self._options
        gpus = options.ranks if self._run.learner.device == "cuda" else 0
        bundles = [{"CPU": 2, "GPU": 0}, *[{"CPU": options.ranks, "GPU": gpus}] * options.learners]
        self._group = cluster.reserve(
            self._ray, bundles, wait_s=options.wait_s, asked=self._asked.__bool__
        )
        if self._asked:
            return
        self._core = [self._place("broker", 1, 0)]
        self._join(self._core[0])
        for at in range(options.learners):
            self._core.append(self._place("learner", options.ranks, 1 + at, gpus))
        for post in self._core[1:]:
            self._join(post)
        # The broker only now: it refuses to start where it may let in nobody.
        meeting = f"{self._run.run.name}-{next(self._numbers)}"
        for post in self._core:
            self._command(post, meeting)

    def _place_peers(self) -> None:
        """Places the evaluator, and a node on each machine that has CPUs left."""
        now = time.monotonic()
        for where, cpus in {0: 1, **cluster.free_cpus()}.items():
            if cpus and where not in self._peers and now >= self._slots[where].due_at:
                self._peers[where] = self._place("actor" if where else "evaluator", cpus, where)
        for post in list(self._peers.values()):
            if not post.seat.host and now > post.joins_by:
                self._lose(post, "has got no place")

    def _place(self, role: str, cpus: int, where: int | str, gpus: int = 0) -> _Post:
        name = role if role == "broker" else f"{role}-{next(self._numbers)}"
        strategies = self._ray.util.scheduling_strategies
        strategy = (
            strategies.NodeAffinitySchedulingStrategy(where, soft=False)
            if isinstance(where, str)
            else strategies.PlacementGroupSchedulingStrategy(self._group, where)
        )
        actor = self._ray.remote(Agent).options(
            num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy
        )
        agent = actor.remote(name)
        public = self._core[0].seat.public if self._core else ""
        call = agent.join.remote(self._token, self._word, public)
        return _Post(name, cpus, where, agent, call, time.monotonic() + _JOINS_WITHIN_S)

    def _join(self, post: _Post) -> None:
        """Waits for an agent; the broker lets it in from now on."""
        post.seat = self._ray.get(post.call, timeout=_JOINS_WITHIN_S)
        log.info("%s is on %s, CPUs: %d", post.name, post.seat.host, post.cpus)
        if post.role != "broker":
            call = self._core[0].agent.authorise.remote(post.name, post.seat.public)
            self._ray.get(call, timeout=_CALL_S)

    def _command(self, post: _Post, meeting: str = "") -> None:
        first = self._core[:2][-1]
        values = {
            **post.seat._asdict(),
            "third": post.seat.port + 2,
            "broker": f"tcp://{self._core[0].address}",
            "first": first.address,
            "is_first": post is first,
            "meeting": meeting,
            "role": post.role,
            "cpus": post.cpus,
            "learners": self._options.learners,
            "out": self._options.out,
        }
        words = [word.format_map(values) for word in _WORDS[post.role].split()]
        if post.role in ("actor", "evaluator"):
            words += allowed_code.allow_options(self._run)
        learns = post.role == "learner"
        env = {"STOPPED_STATUS": _STOPPED} if learns else {"OMP_NUM_THREADS": "1"}
        module = f"headrace.launch.{'torchrun' if learns else 'cli'}"
        call = post.agent.start.remote(module, words, {**env, logs.VARIABLE: logs.form()})
        self._ray.get(call, timeout=_CALL_S)
        post.call = post.agent.ended.remote(1.0)

    # ---- watch ----------------------------------------------------------------------------------

    def _watch(self) -> int | None:
        """Returns the run's status once it is over; None = asked to stop."""
        while not self._asked:
            self._place_peers()
            calls = {post.call: post for post in [*self._core, *self._peers.values()]}
            ready, _ = self._ray.wait(list(calls), timeout=1.0)
            for post in map(calls.__getitem__, ready):
                try:
                    status = self._hear(post)
                except self._ray.exceptions.RayError as error:
                    if post in self._core or isinstance(error, UserError):
                        raise
                    self._lose(post, _line(error))
                else:
                    if status is not None:
                        return status
        return None

    def _hear(self, post: _Post) -> int | None:
        """Takes an agent's answer; returns the run's status, if it is over by that."""
        if not post.seat.host:
            self._join(post)
            self._slots[post.where].started(1, time.monotonic())
            self._command(post)
            return None
        status: int | None = self._ray.get(post.call)
        post.call = post.agent.ended.remote(1.0)
        if status == runtime.YOUR_INPUT:
            log.error("%s cannot work so; its line above says why", post.name)
            return status
        if post.role == "learner" and status in (runtime.OK, runtime.LIMIT, runtime.DIVERGED):
            return status
        if status is not None and post in self._core:
            raise ChildProcessError(f"{post.name} {forking.exit_words(status)}")
        if status is not None:
            self._lose(post, forking.exit_words(status), _OVER_S if status == runtime.OK else 0.0)
        return None

    def _lose(self, post: _Post, why: str, least_s: float = 0.0) -> None:
        """Gives a node or evaluator up; another is placed after a pause."""
        slot, now = self._slots[post.where], time.monotonic()
        slot.due_at = now + max(least_s, slot.ended(now))
        level = logging.INFO if least_s else logging.WARNING
        log.log(level, "%s %s; another in %.1f s", post.name, why, slot.due_at - now)
        if post.seat.host:
            self._ray.wait([post.agent.close.remote()], timeout=_CALL_S)
        self._ray.kill(post.agent)
        del self._peers[post.where]
        self._core[0].agent.authorise.remote(post.name, "")

    # ---- end ------------------------------------------------------------------------------------

    def _end(self, *, over: bool) -> None:
        """Ends the learner, nodes, evaluator, and the broker last. `over`: they end by themselves,
        but for the broker."""
        posts = [*self._core, *self._peers.values()]
        nodes = [post for post in posts if post.role == "actor"]
        evaluators = [post for post in posts if post.role == "evaluator"]
        # Of the learner the first machine alone is asked: all ranks stop together, and a torchrun
        # that was asked would keep the others waiting, but not where they met.
        save_s, patience_s = self._run.learner.rank_timeout_s + _SAVE_S, _SAVE_S * over
        first = self._stop(self._core[1:2], patience_s, save_s)
        self._wait([*first, *self._stop(self._core[2:], patience_s + save_s, _CLOSE_S)])
        self._wait(self._stop(nodes, _OVER_S * over, self._run.actor.drain_s + _CLOSE_S))
        self._wait(self._stop(evaluators, (LAST_S + _OVER_S) * over, _OVER_S))
        self._wait(self._stop(self._core[:1], 0.0, _CLOSE_S))
        self._wait([post.agent.close.remote() for post in posts if post.seat.host])
        for post in posts:
            self._ray.kill(post.agent)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._core, self._peers, self._group = [], {}, None

    def _stop(self, posts: list[_Post], patience_s: float, drain_s: float) -> list[Any]:
        return [post.agent.stop.remote(patience_s, drain_s) for post in posts if post.seat.host]

    def _wait(self, calls: list[Any]) -> None:
        """Waits for all calls, each of which has a time limit of its own; an agent that is gone
        answers too."""
        if calls:
            self._ray.wait(calls, num_returns=len(calls))


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
