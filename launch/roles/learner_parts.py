"""Builds the parts of a learner rank from its run and its command line."""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec import structs

from headrace.actors.envs.registering import episode_limit
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.evaluations import HeardEvaluations
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.learner_ends import LearnerEnds
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello
from headrace.broker.transport import several
from headrace.launch.config import algorithm_defaults, keyring, run_file, shared_run, unroll_size
from headrace.launch.process import logs
from headrace.launch.roles.options import LearnerOptions
from headrace.launch.roles.role import Role
from headrace.launch.web import http
from headrace.learner.batches.logprob_gap import LogProbGap
from headrace.learner.batches.make_batch import make_batch
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.batches.recording import Recorder
from headrace.learner.config import AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build, chosen_kind
from headrace.learner.models.model import Model
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """Builds the parts of one rank."""

    run: run_file.Run
    options: LearnerOptions
    ranks: Ranks
    device: torch.device
    spaces: Spaces
    role: Role
    heard: HeardEvaluations | None  # rank 0's, where stop.metric asks for evaluations

    def feed(self, layout: str, journal: Journal, recorder: Recorder | None) -> UnrollReceiver:
        """Returns the receiver of unrolls. `layout`: the digest of the network's weights."""
        run, ranks, spaces = self.run, self.ranks, self.spaces
        empty_batch = functools.partial(
            make_batch,
            spaces,
            run.unroll,
            run.model,
            unrolls=run.pacing.batch_unrolls // ranks.world,
            pinned=self.device.type == "cuda",
        )
        # So many for each broker: any of them may be the only one that has unrolls.
        count = (run.learner.prefetch + 1) * run.broker.shards
        batches = [empty_batch() for _ in range(count)]
        return UnrollReceiver(self._make_ends(journal), batches, layout=layout, recorder=recorder)

    def _make_ends(self, journal: Journal) -> Callable[..., LearnerEnds]:
        """Returns what opens the connections with the run's brokers."""
        run, options, ranks, spaces = self.run, self.options, self.ranks, self.spaces
        addresses = several.addresses(options.broker)
        if len(addresses) != run.broker.shards:
            raise run_file.ConfigError(
                f"--broker names {len(addresses)} of the run's brokers, which are"
                f" {run.broker.shards} (broker.shards): a learner speaks with all of them"
            )
        hello = Hello(
            "learner",
            name_of(ranks),
            self.role.inc,
            run=run.run.name,
            spaces=spaces.digest(),
            rank=ranks.rank,
            world=ranks.world,
            group=ranks.same([self.role.inc])[0],
            take_over=options.take_over,
            # A user who resumes an empty folder was told so, and goes on.
            fresh=options.fresh or options.resume,
        )
        payload = HelloPayload(
            shared=shared_run.shared(run),
            spaces=str(spaces),
            unroll_bytes=unroll_size.unroll_bytes(run, spaces),
            port=self.serve_metrics(),
            brokers=len(addresses),
        )
        return functools.partial(
            LearnerEnds,
            [functools.partial(LearnerEnd, address, hello, payload) for address in addresses],
            rank=ranks.rank,
            world=ranks.world,
            batch=run.pacing.batch_unrolls,
            journal=journal,
            key=keyring.key(run, "learner", options.key),
            reports=logs.reports(),
            evaluations=self.heard,
        )

    def settled(self) -> tuple[AlgorithmConfig, LearnerConfig]:
        """Returns what the run is trained by, with numbers for what is "auto"; says which."""
        algorithm, learner, said = algorithm_defaults.settled(
            self.run,
            kind=chosen_kind(self.run.model, self.spaces),
            limit=episode_limit(self.run.env),
            numbers=self.spaces.action.numbers,
        )
        for line in said:
            log.info("%s", line)
        if self.options.record:
            # What is recorded can be trained again to the same bits, on another machine too.
            learner = structs.replace(learner, graph=False, compile=False)
        return algorithm, learner

    def recorder(self, *, fresh: bool) -> Recorder | None:
        """Returns the recorder, if one is wanted; None for a continued run: a replay needs its
        beginning."""
        if not self.options.record:
            return None
        if not fresh:
            log.warning("not recorded: the run is continued, and a recording begins with it")
            return None
        return Recorder(
            self.options.out,
            rank=self.ranks.rank,
            world=self.ranks.world,
            run=run_file.effective(self.run),
            spaces=self.spaces.digest(),
        )

    def target(self, model: Model) -> Model | None:
        """Returns appo's target network, a copy of the model; None for other algorithms."""
        if self.run.algorithm.name != "appo":
            return None
        copied = build(self.run.model, self.spaces, seed=self.run.run.seed).to(self.made_on)
        copied.load_state_dict(model.state_dict())
        return copied

    @property
    def made_on(self) -> torch.device:
        """Returns where networks are made: what is spread over the ranks goes to its device in
        parts."""
        spread = self.run.learner.shard and self.ranks.world > 1
        return torch.device("cpu") if spread else self.device

    def gap_check(self) -> LogProbGap | None:
        """Returns the check of log-probabilities; None where they are of the user's exploration, or
        the network is a population or spread: the check keeps copies, and those are large."""
        run = self.run
        if run.actor.explore or run.env.population or run.learner.shard:
            return None
        return LogProbGap(
            build(self.run.model, self.spaces, seed=0),
            self.spaces,
            keep=self.run.pacing.max_lag + 4,
            envs=self.run.unroll.envs,
            previous=self.run.model.previous,
        )

    def serve_metrics(self) -> int:
        """Serves this rank's metrics; returns the port that the broker may tell Prometheus, 0 =
        none."""
        run, (host, port), registry = self.run, self.options.metrics, self.role.registry
        http.set_run_info(registry, run=run.run.name, algorithm=run.algorithm.name, env=run.env.id)
        port = port + self.ranks.local_rank if port else port
        broker, stuck = several.addresses(self.options.broker)[0], self.role.stuck
        return http.serve_metrics(
            registry, host, port, broker=broker, healthy=lambda: "", stuck=stuck
        )


def heard_evaluations(run: run_file.Run, ranks: Ranks) -> HeardEvaluations | None:
    """Returns where rank 0 keeps the evaluations that it hears of, if stop.metric asks for them."""
    wanted = run.stop.evaluated
    if not wanted or ranks.rank:
        return None
    return HeardEvaluations(wanted, episodes=run.evaluate.episodes, now=time.monotonic())


def name_of(ranks: Ranks) -> str:
    return f"learner-{ranks.rank}"
