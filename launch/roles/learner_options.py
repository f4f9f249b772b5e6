"""The options of a learner's command line. Needs no torch: help texts stay quick."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from headrace.launch import shared_options
from headrace.launch.config import run_file, starts


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the run."""

    broker: str
    out: Path
    resume: bool
    ledger: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    started: float = 0.0  # of the process that the user started, by time.monotonic; 0 = ours
    began: float | None = None  # the run's clock at 0; None = where its history stands
    record: bool = False  # write down every unroll that is trained on
    key: Path | None = None  # None = the run's, if it works with keys
    start: starts.Start | None = None  # None = part of `headrace train`, which wrote it
    take_over: bool = False  # another learner of this run must end
    fresh: bool = False  # new weights may replace what the run has trained
    final: bool = False  # a request to stop ends the whole run, not just this process


def arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key"
    )
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
    parser.add_argument(
        "--key",
        type=shared_options.path,
        metavar="FILE",
        help="its key; default: learner.key in security.keys, when security.curve is set",
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", help="default: this machine only")
    parser.add_argument("--metrics-port", type=int, help="/metrics; rank r listens at port + r")
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--final", action="store_true", help=argparse.SUPPRESS)


def options_of(given: argparse.Namespace, run: run_file.Run) -> Options:
    out = given.out or Path("headrace-runs") / run.run.name
    return Options(
        broker=given.broker or run.broker.bind,
        out=out,
        resume=given.resume,
        take_over=given.take_over,
        fresh=given.fresh,
        ledger=given.ledger or out / "ledger",
        record=given.record,
        key=given.key,
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
        started=given.started,
        began=given.began,
        final=given.final,
    )
