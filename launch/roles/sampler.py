"""Puts a sampler process together. It needs an address; the run comes from the broker."""

import asyncio
import functools
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from headrace.actors.acting.central.choice import PLACES, Choice
from headrace.actors.acting.central.client import CentralNetwork
from headrace.actors.acting.others import NO_OTHERS
from headrace.actors.acting.policy import Policy
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.evaluator import check_others
from headrace.actors.league.league import League, SelfPlay
from headrace.actors.league.players import Played, opponents
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.policies.shared_stepper import PolicyStepper
from headrace.actors.policies.sharing import Learner, share
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.stepper import Stepper
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.fields import MAX_VERSION
from headrace.launch.config import allowed_code as allowing
from headrace.launch.config import keyring, run_file, shared_run
from headrace.launch.process import descriptors, logs, runtime, sd_notify
from headrace.launch.process.node_reports import WANTS_ACT, ProcessFigures, ReportSender
from headrace.launch.results import loaded_run
from headrace.launch.results.loaded_run import Check, named_player
from headrace.launch.roles import gone_broker
from headrace.launch.roles.options import PeerOptions
from headrace.launch.roles.role import Role
from headrace.learner.weights import WeightsError

log = logging.getLogger(__name__)


@logs.one_line_errors(ValueError)  # of a network that cannot be made, or makes no numbers
def sample(
    options: PeerOptions,
    *,
    seed: int,
    shelf: Path | None = None,
    sender: ReportSender | None = None,
) -> int:
    """Samples until SIGTERM, or until the run is over. `shelf`: where a relay of this machine puts
    weights; `sender`: the connection to its node."""
    descriptors.for_peer("a sampler")

    async def main() -> int:
        with Role("actor", name=options.name) as role:
            metrics = SamplerMetrics(role.registry)
            end = open_end(role, options, shelf)
            await _sample(role, end, options, seed, metrics, shelf=shelf, sender=sender)
        return runtime.OK

    return gone_broker.run(main)


def open_end(role: Role, options: PeerOptions, shelf: Path | None = None) -> SamplerEnd:
    """Returns the end that speaks with the broker, and serves its metrics."""
    end = SamplerEnd(
        options.broker,
        name=options.name,
        inc=role.inc,
        context=role.context,
        journal=role.open_journal(options.ledger),
        key=keyring.from_file(options.key, "actor"),
        shelf=shelf,
    )
    role.attach(end, options)
    return end


async def told_run(end: SamplerEnd, options: PeerOptions, check: Check) -> run_file.Run:
    """Waits for the run that the broker tells, and checks it."""
    while end.run is None:
        end.news.clear()
        await end.news.wait()
    run = shared_run.from_shared({**end.run, "actor": {**end.run["actor"], **options.sets}})
    check(run)
    end.journal.trace(run.unroll.trace_every)
    return run


async def _sample(
    role: Role,
    end: SamplerEnd,
    options: PeerOptions,
    seed: int,
    metrics: SamplerMetrics,
    *,
    shelf: Path | None,
    sender: ReportSender | None,
) -> None:
    check = functools.partial(allowing.check, prefixes=allowing.allowed(options.allow))
    async with asyncio.TaskGroup() as group:
        link = group.create_task(end.serve(), name="link")
        leaving = group.create_task(gone_broker.watch(end.link, options.brokers), name="gone")
        reading = SamplerReading(end, metrics)
        notify = group.create_task(role.watch(reading).loop(), name="notify")
        run = await told_run(end, options, check)
        logs.set_identity(run=run.run.name)
        figures = functools.partial(_figures, end, reading, run.actor.drain_s)
        telling = group.create_task(sender.keep_sending(figures), name="tell") if sender else None
        reading.sampler = sampler = build(
            end, run, seed=seed, metrics=metrics, check=check, beside=options.ledger, shelf=shelf
        )
        try:
            await sampler.run()
            log.info("the run is over: %s", end.over)
        except asyncio.CancelledError:
            if not (link.done() or leaving.done()):
                log.info("asked to stop: waiting for %d acknowledgements", len(end.outbox))
                await sampler.drain(runtime.may_wait(run.actor.drain_s))
            raise
        finally:
            end.leave(end.over or "stopped")
            sampler.stepper.close()
            notify.cancel()
            leaving.cancel()
            link.cancel()
            if sender is not None and telling is not None:
                telling.cancel()
                sender.send(figures(), patience_s=0.5)


def _figures(end: SamplerEnd, reading: "SamplerReading", drain_s: float) -> ProcessFigures:
    """Returns what it reports to its node."""
    welcome = end.link.welcome is not None
    stats = {**end.stats, WANTS_ACT: 1.0} if asks_act(reading.sampler) else end.stats
    return ProcessFigures(os.getpid(), welcome, bool(end.over), drain_s, stats)


@dataclass(slots=True)
class SamplerReading:
    """Reads how a sampler is. One that waits only for its environments is at work: if they never
    answer, it hangs."""

    end: SamplerEnd
    metrics: SamplerMetrics
    sampler: Sampler | None = None  # None = its environments are not made yet

    def __call__(self) -> sd_notify.WatchdogReading:
        sampler, outbox, link = self.sampler, self.end.outbox, self.end.link
        waits = sampler.waits_for if sampler is not None else ""
        text = "" if link.welcome is not None else f"no broker answers at {link.endpoint}; "
        text += f"version {self.end.acting}"
        return sd_notify.WatchdogReading(
            ready=link.welcome is not None and sampler is not None,
            moved=(self.metrics.calls, outbox.generated - len(outbox), self.end.acting),
            turns=(link.loop_turns,),
            idle=sampler is None or waits not in ("", "env"),
            text=f"{text}, waits for {waits}" if waits not in ("", "env") else text,
            steps=self.metrics.env_steps,
        )


def build(
    end: SamplerEnd,
    run: run_file.Run,
    *,
    seed: int,
    metrics: SamplerMetrics,
    check: Check = lambda _: None,
    shared: PolicyStepper | None = None,
    others: League | None = None,
    beside: Path | None = None,
    shelf: Path | None = None,
) -> Sampler:
    """Makes environments and policy by the run, and asks the broker for credit. `check` gets the
    run of a folder of the league before any code that it names is asked. `shared`: environments
    in which other policies play as well; None = they are this policy's alone. `others`: the league
    of policies that learn beside each other. `beside`: a folder in the run's own, if that is on
    this machine: a league begins with the weights kept there.
    `shelf`: where a relay of this machine puts weights."""
    torch.set_num_threads(min(run.actor.threads, runtime.cores()))
    alone = shared is None
    if shared is None and run.env.others:
        player = functools.partial(named_player, "env.others", seed=seed, check=check)
        one = learner(run, end, metrics)
        (shared,) = share([one], run.actor, player=player, seed=seed, sampler=end.name)
    stepper = shared or make_stepper(
        run.actor, run.env, envs=run.unroll.envs, seed=seed, sampler=end.name
    )
    policy = Policy(
        run.model,
        stepper.spaces,
        seed=seed,
        precision=run.actor.precision,
        explore=run.actor.explore,
    )
    if run.actor.acting != "local":
        _act_centrally(policy, stepper, run, shelf)
    if alone and run.league.share:
        others = _league(run, stepper, seed, metrics, check)
    if others is not None:
        others.earlier = end.weights.past
    if others is not None and beside is not None:
        take_up(others, beside.parent, run.league.keep)
    end.open(streams=run.actor.groups, spaces=(stepper.spaces.digest(), str(stepper.spaces)))
    # One sampler of one group without lag is the same run again, in whatever order its parts come.
    again = run.pacing.max_lag == 0 and run.actor.groups == 1
    return Sampler(
        end=end,
        stepper=stepper,
        policy=policy,
        length=run.unroll.length,
        largest=run.unroll.largest,
        batching_wait=BatchingWait(limit_s=run.actor.wait_ms / 1000),
        crash_budget=CrashBudget(run.env.id, per_hour=run.actor.crashes_per_hour),
        metrics=metrics,
        together=again and stepper.frame.parts > 1,
        # Groups that supply alike supply whole unrolls.
        max_lag=run.pacing.max_lag if run.pacing.balance == "speed" else MAX_VERSION,
        others=others,
        beside=shared or NO_OTHERS,
    )


def take_up(league: League, run_dir: Path, most: int) -> None:
    """Lets a league begin with the weights that the run's folder keeps: a sampler that is started
    again would otherwise have nobody to meet."""
    taken = []
    for blob in loaded_run.kept_weights(run_dir, most):
        try:
            league.took(blob)
        except WeightsError as error:
            log.warning("the league does not meet what %s keeps: %s", run_dir, error)
            return
        taken.append(blob.announce.version)
    if taken:
        log.info("the league begins with versions %s", ", ".join(map(str, taken)))


def learner(run: run_file.Run, end: SamplerEnd, metrics: SamplerMetrics) -> Learner:
    """Returns the policy of this run, as one that learns in environments that it shares."""

    def may_begin(stream: int) -> bool:
        return not end.over and end.outbox.may_start(stream, end.acting)

    return Learner(
        run.run.name,
        run.env,
        run.unroll.envs,
        over=lambda: end.over,
        unrecorded=metrics.played_unrecorded,
        may_begin=may_begin,
    )


def asks_act(sampler: Sampler | None) -> bool:
    """Says whether it would ask an act process; None = it is not made yet."""
    return sampler is not None and isinstance(sampler.policy.network, CentralNetwork)


def _act_centrally(policy: Policy, stepper: Stepper, run: run_file.Run, shelf: Path | None) -> None:
    """Lets the policy ask the act process of its node, where that can be of use."""
    said = f'actor.acting = "{run.actor.acting}": it acts by itself,'
    if shelf is None:
        log.info("%s only `headrace node` has a process for all of its samplers", said)
    elif policy.quick:
        log.info("%s as a call of so small a network costs less than to ask", said)
    else:
        policy.network = CentralNetwork(
            policy.network,
            shelf,
            facts=(run.model, stepper.spaces, run.actor.precision),
            rows=stepper.frame.groups * stepper.frame.envs,
            sizes=(policy.numbers, policy.memory),
            weights=lambda: policy.digest,
            choice=Choice(PLACES) if run.actor.acting == "auto" else None,
        )


def _league(
    run: run_file.Run, stepper: Stepper, seed: int, metrics: SamplerMetrics, check: Check
) -> League:
    """Returns who plays with a policy that learns alone."""
    frame = stepper.frame
    if run.env.agents:
        raise run_file.ConfigError(
            "league.share needs a policy that plays all agents, or others that learn beside it;"
            f" env.agents names only {', '.join(run.env.agents)}"
        )
    check_others(run.env, frame.agents, "league.share")
    player = functools.partial(named_player, "league.others", seed=seed, check=check)
    played = Played(run.model, stepper.spaces, run.actor)
    met = opponents(run.league, played, player, seed=seed)
    envs = frame.groups * frame.envs // frame.agents
    draws = SelfPlay(run.league, met, envs=envs, agents=frame.agents, seed=seed)
    return League(frame, draws, tell=metrics.game_ended)
