"""The options of the roles and the arguments of the learner. Needs no torch: help stays quick."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from headrace.broker.transport import several
from headrace.launch import shared_options
from headrace.launch.config import run_file, starts

T = TypeVar("T")


class Address(NamedTuple):
    """Holds where a process serves its metrics."""

    host: str = "127.0.0.1"
    port: int | None = None  # 0 takes a free one, None serves nothing


NOWHERE: Final = Address()


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Holds the options of a peer that gets its run from the broker: sampler, evaluator, node."""

    broker: str
    name: str
    sets: Mapping[str, Any] = field(default_factory=dict)  # instead of what the run suggests
    ledger: Path | None = None  # the folder of its journal; None = it writes none
    metrics: Address = NOWHERE
    key: Path | None = None
    allow: Sequence[str] = ()  # code that the broker's run may name
    brokers: str = ""  # all of the run's, if this one may be left for another; "" = it may not


def default_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """Holds a learner's options, beside the run."""

    broker: str
    out: Path
    resume: bool
    ledger: Path | None = None
    metrics: Address = NOWHERE  # of rank 0 here; rank r of this machine listens at port + r
    started: float = 0.0  # of the process that the user started, by time.monotonic; 0 = ours
    began: float | None = None  # the run's clock at 0; None = where its history stands
    record: bool = False  # write down every unroll that is trained on
    key: Path | None = None  # None = the run's, if it works with keys
    start: starts.Start | None = None  # None = part of `headrace train`, which wrote it
    take_over: bool = False  # another learner of this run must end
    fresh: bool = False  # new weights may replace what the run has trained
    final: bool = False  # a request to stop ends the whole run, not just this process


def learner_arguments(parser: argparse.ArgumentParser) -> None:
    run = parser.add_mutually_exclusive_group(required=True)
    run.add_argument("--run", action="append", help="a TOML file, or the name of a shipped run")
    # torchrun on Python 3.11 takes --run for one of its own, whatever stands before it.
    run.add_argument(
        "run",
        nargs="*",
        metavar="RUN",
        default=argparse.SUPPRESS,
        help="the same; needed under torchrun, which does not let --run through; several runs are"
        " trained in turns, each with a --broker, --out and --ledger of its own",
    )
    parser.add_argument(
        "--broker",
        action="append",
        help="its address, of several all with commas between; default: the run's broker.bind",
    )
    shared_options.sets(parser)
    parser.add_argument(
        "--out",
        type=shared_options.path,
        action="append",
        help="the run's folder; default: headrace-runs/NAME",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from its checkpoints, by its own settings"
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="end the learner that trains this run now, and go on in its place",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="begin with new weights though the broker's run is trained already: that is forgotten",
    )
    parser.add_argument(
        "--ledger",
        type=shared_options.path,
        action="append",
        help="what was trained; default: OUT/ledger",
    )
    parser.add_argument(
        "--record", action="store_true", help="write every unroll down, for `headrace replay`"
    )
    shared_options.key(parser, "learner.key in security.keys, when security.curve is set")
    shared_options.metrics(parser, "/metrics; rank r of a machine listens at port + r")
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, action="append", help=argparse.SUPPRESS)
    parser.add_argument("--final", action="store_true", help=argparse.SUPPRESS)


def learner_options(
    given: argparse.Namespace, run: run_file.Run, number: int = 0
) -> LearnerOptions:
    """Returns what was given for the run of this number, from 0."""

    def own(values: Sequence[T] | None) -> T | None:
        return values[number] if values else None

    out = own(given.out) or Path("headrace-runs") / run.run.name
    port = given.metrics_port
    if port:  # behind those of all ranks of the run before
        port += number * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return LearnerOptions(
        broker=own(given.broker) or several.of_run(run.broker.bind, run.broker.shards),
        out=out,
        resume=given.resume,
        take_over=given.take_over,
        fresh=given.fresh,
        ledger=own(given.ledger) or out / "ledger",
        record=given.record,
        key=given.key,
        metrics=Address(given.metrics_host, port),
        started=given.started,
        began=own(given.began),
        final=given.final,
    )
