"""Puts together a sampler of several policies: each has its own broker, run and weights."""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.actors.acting.own_seed import own_seed
from headrace.actors.config import EnvConfig
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.policies.shared_stepper import PolicyStepper
from headrace.actors.policies.sharing import share
from headrace.actors.sampler import Sampler
from headrace.broker.peers.sampler import SamplerEnd
from headrace.launch.config import allowed_code
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.policies.leagues import leagues
from headrace.launch.process import descriptors, logs, runtime, sd_notify
from headrace.launch.process.node_reports import WANTS_ACT, ProcessFigures, ReportSender
from headrace.launch.results.loaded_run import named_player, trained_policy
from headrace.launch.roles.options import PeerOptions
from headrace.launch.roles.role import Role
from headrace.launch.roles.sampler import (
    SamplerReading,
    asks_act,
    build,
    learner,
    open_end,
    told_run,
)

log = logging.getLogger(__name__)

# Keys of the env section that are each policy's own affair.
_OWN = ("agents", "stack", "mask", "critic", "metrics", "bounds")


@dataclass(slots=True)
class _Player:
    """Holds one policy's side of the sampler."""

    options: PeerOptions
    role: Role
    end: SamplerEnd
    metrics: SamplerMetrics
    shelf: Path | None  # where a relay of this machine puts its weights
    reading: SamplerReading = field(init=False)
    view: PolicyStepper | None = None
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        self.reading = SamplerReading(self.end, self.metrics)


@logs.one_line_errors(ValueError)  # of a network that cannot be made, or makes no numbers
def sample(
    peers: Sequence[PeerOptions],
    *,
    seed: int,
    done: Sequence[Path] = (),
    shelves: Sequence[Path] = (),
    sender: ReportSender | None = None,
) -> int:
    """Samples for all these brokers until SIGTERM, or until every run is over. `done`: folders of
    policies that learn no more, and play on; `shelves`: where relays of this machine put each one's
    weights; `sender`: the connection to its node."""
    descriptors.for_peer("a sampler")

    async def main() -> int:
        with contextlib.ExitStack() as stack:
            laid = itertools.zip_longest(peers, shelves)
            players = [_open(stack, options, shelf) for options, shelf in laid]
            await _sample(players, seed, done, sender)
        return runtime.OK

    return runtime.run_async(main)


def _open(stack: contextlib.ExitStack, options: PeerOptions, shelf: Path | None) -> _Player:
    role = stack.enter_context(Role("actor", name=options.name))
    metrics = SamplerMetrics(role.registry)
    return _Player(options, role, open_end(role, options, shelf), metrics, shelf)


async def _sample(
    players: Sequence[_Player], seed: int, done: Sequence[Path], sender: ReportSender | None
) -> None:
    allow = [name for one in players for name in one.options.allow]
    check = functools.partial(allowed_code.check, prefixes=allowed_code.allowed(allow))
    async with asyncio.TaskGroup() as group:
        links = [group.create_task(one.end.serve(), name="link") for one in players]
        read = sd_notify.together([one.reading for one in players])
        watch = group.create_task(players[0].role.watch(read).loop(), name="notify")
        leaves: list[asyncio.Task[None]] = []
        runs = [await told_run(one.end, one.options, check) for one in players]
        _check_agreement(runs)
        figures = functools.partial(_figures, players, runs[0].actor.drain_s)
        if sender is not None:
            leaves.append(group.create_task(sender.keep_sending(figures), name="tell"))
        views = share(
            [learner(run, one.end, one.metrics) for run, one in zip(runs, players, strict=True)],
            runs[0].actor,
            player=functools.partial(named_player, "env.others", seed=seed, check=check),
            done=[trained_policy(folder, seed, check) for folder in done],
            seed=seed,
            sampler=players[0].end.name,
        )
        metrics = [one.metrics for one in players]
        others = leagues(runs, views, metrics, seed=seed, check=check)
        for one, run, view, league in zip(players, runs, views, others, strict=True):
            one.view = view
            one.reading.sampler = one.sampler = build(
                one.end,
                run,
                seed=own_seed(seed, run.run.name),
                metrics=one.metrics,
                shared=view,
                others=league,
                beside=one.options.ledger,
                shelf=one.shelf,
            )
        try:
            async with asyncio.TaskGroup() as playing_group:
                for one, link in zip(players, links, strict=True):
                    playing_group.create_task(_play(one, players))
                    leaves.append(group.create_task(_leave(one, link), name="leave"))
        except asyncio.CancelledError:
            log.info("asked to stop: waiting for acknowledgements")
            drains = [
                one.sampler.drain(runtime.may_wait(run.actor.drain_s))
                for one, run in zip(players, runs, strict=True)
                if one.sampler is not None and not one.end.over
            ]
            await asyncio.gather(*drains)
            raise
        finally:
            for one, link in zip(players, links, strict=True):
                if not link.cancelled():
                    one.end.leave(one.end.over or "stopped")
            views[0].close()
            for task in (watch, *leaves, *links):
                task.cancel()
            if sender is not None:
                sender.send(figures(), patience_s=0.5)


def _figures(players: Sequence[_Player], drain_s: float) -> ProcessFigures:
    """Returns what it reports to its node, of all policies together."""
    stats: Counter[str] = Counter()
    for one in players:
        stats.update(one.end.stats)
    welcome = all(one.end.link.welcome is not None for one in players)
    over = all(one.end.over for one in players)
    if any(asks_act(one.sampler) for one in players):
        stats[WANTS_ACT] = 1
    return ProcessFigures(os.getpid(), welcome, over, drain_s, dict(stats))


async def _play(one: _Player, players: Sequence[_Player]) -> None:
    """Plays for one policy until all runs are over."""
    assert one.sampler is not None
    await one.sampler.run()
    if one.sampler.policy.version < 0 and not all(other.end.over for other in players):
        raise ConfigError(
            f"the run at {one.options.broker} is over, and this sampler has no weights of it: the"
            " other policies cannot play without"
        )


async def _leave(one: _Player, link: "asyncio.Task[None]") -> None:
    """Leaves a broker whose run is over, while the policies of others learn on."""
    assert one.view is not None
    await one.view.settled.wait()
    log.info("%s: the run is over: %s", one.options.broker, one.end.over)
    one.end.leave(one.end.over)
    link.cancel()


def _check_agreement(runs: Sequence[Run]) -> None:
    """Raises ConfigError unless these runs can be played in the same environments."""
    first = runs[0]
    for run in runs:
        for section, ours, theirs in (
            ("env", _common(first.env), _common(run.env)),
            ("actor", msgspec.to_builtins(first.actor), msgspec.to_builtins(run.actor)),
        ):
            for key, value in ours.items():
                if theirs[key] != value:
                    raise ConfigError(
                        f"{first.run.name} has {section}.{key} = {value!r}, {run.run.name}"
                        f" {theirs[key]!r}: policies that share environments need the same"
                    )


def _common(env: EnvConfig) -> dict[str, object]:
    return {key: value for key, value in msgspec.to_builtins(env).items() if key not in _OWN}
