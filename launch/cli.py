"""The `headrace` command: which role, with which options. Imports only what the role needs."""

import argparse
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from actors.config import STEPPINGS
from launch import config, process

log = logging.getLogger(__name__)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not the whole usage."""
        print(f"{self.prog}: {message} (see: {self.prog} --help)", file=sys.stderr)  # noqa: T201
        raise SystemExit(process.YOUR_INPUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 our fault, 2 your input, 3 a limit came first."""
    # module:factory may name a file where the user stands; installed packages go first.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    given = _parser().parse_args(arguments)
    try:
        return int(given.role(given))
    except config.ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)  # noqa: T201
        return process.YOUR_INPUT
    except BrokenPipeError:
        return process.OK  # headrace config ... | head


def _train(given: argparse.Namespace) -> int:
    from launch import local

    sets = list(given.set)
    if given.actors is not None:
        sets.append(f"actor.count={given.actors}")
    if given.seed is not None:
        sets.append(f"run.seed={given.seed}")
    for key, value in (
        ("return", given.stop_return),
        ("steps", given.stop_steps),
        ("seconds", given.stop_seconds),
    ):
        if value is not None:
            sets.append(f"stop.{key}={value}")
    run = config.load(given.run, sets)
    out = given.out or run_folder(Path("headrace-runs"), run.run.name, newest=given.resume)
    return local.train(run, out=out, resume=given.resume, quiet=given.quiet)


def run_folder(parent: Path, name: str, *, newest: bool) -> Path:
    """NAME, NAME-2, NAME-3 ..: the first that holds no run yet, or the last that holds one."""
    taken: list[Path] = []
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        if not (folder / "checkpoints").exists():
            return taken[-1] if newest and taken else folder
        taken.append(folder)
    raise AssertionError("unreachable")


def _broker(given: argparse.Namespace) -> int:
    from broker.endpoints import EndpointError
    from launch import broker

    process.start_logging("broker")
    run = config.load(given.run, given.set)
    try:
        return broker.serve(
            run,
            bind=given.bind or run.broker.bind,
            metrics_host=given.metrics_host,
            metrics_port=given.metrics_port,
            report=given.report,
        )
    except (EndpointError, process.PortError) as error:
        log.error("%s", error)
        return process.YOUR_INPUT


def _learner(given: argparse.Namespace) -> int:
    from launch.learner import main as learn

    return learn(given)


def _actor(given: argparse.Namespace) -> int:
    from launch import actor

    process.start_logging("actor")
    return actor.guarded(
        given.broker,
        name=given.name or actor.default_name(),
        seed=given.seed if given.seed is not None else process.incarnation() % 2**31,
        sets={
            key: value
            for key, value in (("groups", given.groups), ("stepping", given.stepping))
            if value is not None
        },
        ledger=given.ledger,
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
    )


def _bench(given: argparse.Namespace) -> int:
    from launch.bench import atari, broker, cartpole, lockstep, sampler

    benches: dict[str, Callable[[], object]] = {
        "broker": broker.bench,
        "throughput": lambda: cartpole.throughput("make"),
        "vector": lambda: cartpole.throughput("vector"),
        "solve": cartpole.solve,
        "lockstep": lambda: [lockstep.bench(run) for run in lockstep.RUNS],
        "atari": atari.bench,
    }
    if given.what == "sampler":
        if given.run is None:
            raise config.ConfigError(
                f"headrace bench sampler RUN: name the run, one of {', '.join(config.shipped())}"
            )
        sampler.bench(given.run, given.set)
    else:
        for name, bench in benches.items():
            if given.what in (name, "all"):
                bench()
    return process.OK


def _config(given: argparse.Namespace) -> int:
    print(config.effective(config.load(given.run, given.set)), end="")  # noqa: T201
    return process.OK


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="headrace", description="Asynchronous reinforcement learning.")
    roles = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    listed = f"a TOML file, or one of: {', '.join(config.shipped())}"

    train = roles.add_parser("train", help="everything on this machine, until solved")
    train.add_argument("run", help=listed)
    _sets(train)
    train.add_argument("--actors", type=int, help="sampler processes")
    train.add_argument("--seed", type=int)
    train.add_argument("--stop-return", type=float, help="mean of the last 100 episodes")
    train.add_argument("--stop-steps", type=int)
    train.add_argument("--stop-seconds", type=float)
    train.add_argument(
        "--out", type=Path, help="the run's folder; default: a new headrace-runs/NAME"
    )
    train.add_argument("--resume", action="store_true", help="continue its newest checkpoint")
    train.add_argument("--quiet", action="store_true", help="no live view, warnings only")
    train.set_defaults(role=_train)

    broker = roles.add_parser("broker", help="the run's broker, alone")
    broker.add_argument("--run", required=True, help=listed)
    _sets(broker)
    broker.add_argument("--bind", help="tcp://host:port or ipc:///path; default: broker.bind")
    broker.add_argument("--report", type=Path, help="write the final numbers here as JSON")
    _metrics(broker)
    broker.set_defaults(role=_broker)

    learner = roles.add_parser("learner", help="a learner rank, alone (several: torchrun)")
    from launch import learner_options

    learner_options.arguments(learner)
    learner.set_defaults(role=_learner)

    actor = roles.add_parser("actor", help="a sampler, alone; the run comes from the broker")
    actor.add_argument("--broker", required=True, help="its address")
    actor.add_argument("--name", help="shown in logs; default: host and process id")
    actor.add_argument("--seed", type=int, help="of its environments; default: random")
    actor.add_argument("--groups", type=int, help="groups of environments; default: the run's")
    actor.add_argument("--stepping", choices=STEPPINGS, help="default: the run's")
    actor.add_argument("--ledger", type=Path, help="write what was generated into this folder")
    _metrics(actor)
    actor.set_defaults(role=_actor)

    bench = roles.add_parser("bench", help="measure; one JSON line each")
    bench.add_argument(
        "what",
        choices=(
            "broker", "throughput", "vector", "solve", "lockstep", "atari", "sampler", "all",
        ),
    )  # fmt: skip
    bench.add_argument("run", nargs="?", help=f"sampler: {listed}")
    _sets(bench)
    bench.set_defaults(role=_bench)

    shown = roles.add_parser("config", help="print the whole run, every default spelt out")
    shown.add_argument("run", help=listed)
    _sets(shown)
    shown.set_defaults(role=_config)
    return parser


def _sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key"
    )


def _metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics-host", default="127.0.0.1")
    parser.add_argument("--metrics-port", type=int, help="serve /metrics and /healthz; 0 = any")


if __name__ == "__main__":
    sys.exit(main())
