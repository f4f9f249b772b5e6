"""The options of the roles' command lines. Needs no torch: help texts stay quick."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.launch import shared_options
from headrace.launch.config import run_file, starts


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
    run.add_argument("--run", help="a TOML file, or the name of a shipped run")
    # torchrun on Python 3.11 takes --run for one of its own, whatever stands before it.
    run.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        default=argparse.SUPPRESS,
        help="the same; needed under torchrun, which does not let --run through",
    )
    parser.add_argument("--broker", help="its address; default: the run's broker.bind")
    shared_options.sets(parser)
    parser.add_argument(
        "--out", type=shared_options.path, help="the run's folder; default: headrace-runs/NAME"
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
        "--ledger", type=shared_options.path, help="what was trained; default: OUT/ledger"
    )
    parser.add_argument(
        "--record", action="store_true", help="write every unroll down, for `headrace replay`"
    )
    shared_options.key(parser, "learner.key in security.keys, when security.curve is set")
    shared_options.metrics(parser, "/metrics; rank r of a machine listens at port + r")
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--final", action="store_true", help=argparse.SUPPRESS)


def broker_arguments(broker: argparse.ArgumentParser) -> None:
    broker.add_argument("--run", required=True, help="a TOML file, or the name of a shipped run")
    shared_options.sets(broker)
    broker.add_argument("--bind", help="tcp://host:port or ipc:///path; default: broker.bind")
    broker.add_argument(
        "--report", type=shared_options.path, help="write the final numbers here as JSON"
    )
    broker.add_argument(
        "--ledger", type=shared_options.path, help="write what became of unrolls into this folder"
    )
    broker.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine even without keys"
    )
    shared_options.key(broker, "broker.key in the folder security.keys")
    shared_options.metrics(broker)
    shared_options.page_name(broker)
    shared_options.log_form(broker)


def actor_arguments(actor: argparse.ArgumentParser) -> None:
    shared_options.broker_address(actor)
    shared_options.peer_name(actor, "shown in logs; default: host and process id")
    actor.add_argument(
        "--seed", type=shared_options.seed, help="of its environments; default: random"
    )
    shared_options.sampling(actor)
    actor.add_argument(
        "--shelf",
        type=shared_options.path,
        metavar="PATH",
        help="take weights from this machine's shared memory, where headrace node puts them",
    )
    shared_options.sent_run(actor, key_default="none")


def node_arguments(node: argparse.ArgumentParser) -> None:
    shared_options.broker_address(node)
    node.add_argument(
        "--samplers",
        type=shared_options.size,
        metavar="N|FILE",
        help="how many, or a file that says it, which SIGHUP reads again; default, also where that"
        " file is not there: one for each core it may use",
    )
    node.add_argument(
        "--notice",
        type=shared_options.notice,
        metavar="FILE|URL",
        help="drain and end as soon as this file is there, or this address answers 200 with a body"
        " that is not empty, FALSE or NONE: the machine is to be taken away",
    )
    node.add_argument(
        "--notice-header",
        type=shared_options.header,
        metavar="'NAME: VALUE'",
        help="asked with it: a token, or what the cloud wants to see",
    )
    shared_options.peer_name(
        node,
        "shown in logs; its samplers are NAME-0, ..; default: host; the second on a machine"
        " is NAME.2",
    )
    shared_options.sampling(node)
    shared_options.sent_run(node, key_default="none; a sampler's")


def evaluator_arguments(evaluate: argparse.ArgumentParser) -> None:
    shared_options.broker_address(evaluate)
    shared_options.peer_name(evaluate, "shown in logs; default: host and process id")
    evaluate.add_argument(
        "--out",
        type=shared_options.path,
        help="the run's folder: evaluations and the best weights go there",
    )
    evaluate.add_argument("--episodes", type=int, help="of each evaluation; default: the run's")
    evaluate.add_argument("--every-s", type=float, help="between their starts; default: the run's")
    evaluate.add_argument("--share", type=float, help="of this machine; default: the run's")
    shared_options.sent_run(evaluate, key_default="none")


def learner_options(given: argparse.Namespace, run: run_file.Run) -> LearnerOptions:
    out = given.out or Path("headrace-runs") / run.run.name
    return LearnerOptions(
        broker=given.broker or run.broker.bind,
        out=out,
        resume=given.resume,
        take_over=given.take_over,
        fresh=given.fresh,
        ledger=given.ledger or out / "ledger",
        record=given.record,
        key=given.key,
        metrics=Address(given.metrics_host, given.metrics_port),
        started=given.started,
        began=given.began,
        final=given.final,
    )
