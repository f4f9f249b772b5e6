"""The `headrace` command: what each command does. Imports only what the command needs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    from headrace.launch import arguments
    from headrace.launch.config import run_file
    from headrace.launch.config.starts import run_folder
    from headrace.launch.process import logs, runtime
except KeyboardInterrupt:  # too early for main to catch it
    raise SystemExit(3) from None


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 our fault, 2 your input, 3 a limit came first."""
    # module:factory may name a file in the working directory; installed packages go first.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    parser = arguments.parser()
    words = sys.argv[1:] if words is None else words
    if not words:
        parser.print_help()
        return runtime.OK
    given = parser.parse_args(words)
    try:
        return int(_COMMANDS[given.command](given))
    except run_file.ConfigError as error:
        logs.refuse(error)
        return runtime.YOUR_INPUT
    except BrokenPipeError:
        return runtime.OK  # headrace config ... | head
    except KeyboardInterrupt:  # a run that has started handles it itself
        return runtime.LIMIT


def _train(given: argparse.Namespace) -> int:
    from headrace.launch.config import starts
    from headrace.launch.local import train

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
    name = run_file.load(given.run, sets).run.name
    out = given.out or run_folder(Path("headrace-runs"), name, newest=given.resume)
    start = starts.begin(given.run, sets, out, resume=given.resume)
    return train.train(start, quiet=given.quiet, evaluate=given.evaluate, record=given.record)


def _play(given: argparse.Namespace) -> int:
    from headrace.launch.results import play

    logs.start("play", quiet=True)
    return play.play(
        given.folder,
        which=given.checkpoint,
        episodes=given.episodes,
        greedy=not given.sampled,
        seed=given.seed,
        video=given.video,
        sets=given.set,
    )


def _export(given: argparse.Namespace) -> int:
    from headrace.launch.export import export

    logs.start("export", quiet=True)
    return export.export(given.folder, which=given.checkpoint, out=given.out)


def _report(given: argparse.Namespace) -> int:
    from headrace.launch.results import report

    return report.report(given.folder, to=given.to)


def _broker(given: argparse.Namespace) -> int:
    from headrace.launch.roles import broker

    logs.start("broker", quiet=given.log_level == "warning", form=logs.chosen(given.log))
    run = run_file.load(given.run, given.set)
    return broker.serve(
        run,
        bind=given.bind or run.broker.bind,
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
        page_names=given.page_name,
        report=given.report,
        ledger=given.ledger,
        key=given.key,
        insecure=given.insecure,
    )


def _learner(given: argparse.Namespace) -> int:
    from headrace.launch.roles.learner import main as learn

    return learn(given)


def _actor(given: argparse.Namespace) -> int:
    from headrace.launch.roles import sampler as actor

    logs.start("actor", quiet=given.log_level == "warning", form=logs.chosen(given.log))
    return actor.guarded(
        given.broker,
        name=given.name or actor.default_name(),
        seed=given.seed if given.seed is not None else runtime.incarnation() % 2**31,
        sets=_given(groups=given.groups, stepping=given.stepping),
        ledger=given.ledger,
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
        key=given.key,
        shelf=given.shelf,
        allow=given.allow,
    )


def _node(given: argparse.Namespace) -> int:
    from headrace.launch.node import node

    logs.start("node", quiet=given.log_level == "warning", form=logs.chosen(given.log))
    return node.node(
        given.broker,
        samplers=given.samplers,
        name=given.name,
        sets=_given(groups=given.groups, stepping=given.stepping),
        ledger=given.ledger,
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
        key=given.key,
        allow=given.allow,
    )


def _evaluate(given: argparse.Namespace) -> int:
    from headrace.launch.roles import evaluator
    from headrace.launch.roles.sampler import default_name

    logs.start("evaluator", quiet=given.log_level == "warning", form=logs.chosen(given.log))
    return evaluator.guarded(
        given.broker,
        name=given.name or default_name(),
        out=given.out,
        sets=_given(episodes=given.episodes, every_s=given.every_s),
        metrics_host=given.metrics_host,
        metrics_port=given.metrics_port,
        key=given.key,
        allow=given.allow,
    )


def _keygen(given: argparse.Namespace) -> int:
    from headrace.broker.security.keys import ROLES
    from headrace.launch import keygen

    return keygen.keygen(given.folder, {role: getattr(given, role) for role in ROLES})


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _replay(given: argparse.Namespace) -> int:
    from headrace.launch.results import replay

    logs.start("replay")
    return replay.replay(given.folder)


def _audit(given: argparse.Namespace) -> int:
    from headrace.launch.results import audit_table

    return audit_table.audit_table(given.folder)


def _top(given: argparse.Namespace) -> int:
    from headrace.launch.monitor import top

    return top.top(
        given.broker, key=given.key, port=given.web, host=given.host, names=given.page_name
    )


def _doctor(given: argparse.Namespace) -> int:
    from headrace.launch.doctor import doctor

    return doctor.doctor(given.run, given.set, address=given.broker, key=given.key)


def _units(given: argparse.Namespace) -> int:
    from headrace.launch.deploy import units

    return units.units(
        given.kind,
        run_file.load(given.run, given.set),
        nodes=given.nodes,
        broker=given.broker,
        ranks=given.ranks,
        learners=given.learners,
        key_folder=given.key_folder,
        bin_folder=given.bin,
        out=given.out,
    )


def _bench(given: argparse.Namespace) -> int:
    from headrace.launch.bench import (
        atari,
        broker,
        cartpole,
        crowd,
        encryption,
        learning_gates,
        lockstep,
        sampler,
    )

    benches: dict[str, Callable[[], object]] = {
        "broker": broker.bench,
        "throughput": lambda: cartpole.throughput("make"),
        "vector": lambda: cartpole.throughput("vector"),
        "solve": cartpole.solve,
        "lockstep": lambda: [lockstep.bench(run) for run in lockstep.RUNS],
        "atari": atari.bench,
        "curve": encryption.bench,
        "crowd": lambda: crowd.bench(crowd.size_of(given.names)),
    }
    if given.what == "sampler":
        if len(given.names) != 1:
            raise run_file.ConfigError(
                f"headrace bench sampler RUN: name the run, one of {', '.join(run_file.shipped())}"
            )
        sampler.bench(given.names[0], given.set)
    elif given.what == "learn":  # too long to be one of "all"
        learning_gates.bench(given.names)
    else:
        for name, bench in benches.items():
            if given.what in (name, "all"):
                bench()
    return runtime.OK


def _config(given: argparse.Namespace) -> int:
    print(run_file.effective(run_file.load(given.run, given.set)), end="")  # noqa: T201
    return runtime.OK


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "play": _play,
    "export": _export,
    "report": _report,
    "broker": _broker,
    "learner": _learner,
    "actor": _actor,
    "node": _node,
    "evaluate": _evaluate,
    "replay": _replay,
    "audit": _audit,
    "keygen": _keygen,
    "top": _top,
    "doctor": _doctor,
    "units": _units,
    "bench": _bench,
    "config": _config,
}


if __name__ == "__main__":
    sys.exit(main())
