"""The command line: every command with its options. What each command does is in cli.py."""

import argparse
import sys
from typing import NoReturn

from headrace.broker.release import release
from headrace.broker.security.keys import ROLES
from headrace.launch import benches, cluster_arguments, examples
from headrace.launch import shared_options as shared
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.roles import options

_LISTED = f"a TOML file, or one of: {', '.join(run_file.shipped())}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints one line, not the whole usage."""
        print(f"{self.prog}: {message} (see: {self.prog} --help)", file=sys.stderr)  # noqa: T201
        raise SystemExit(runtime.YOUR_INPUT)


def parser() -> argparse.ArgumentParser:
    """Builds the parser; the parsed `command` is the name of the command."""
    whole = _Parser(
        prog="headrace",
        description="Asynchronous reinforcement learning.",
        epilog=examples.main_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"headrace {release()}")
    # For the processes that `headrace train` restarts.
    whole.add_argument(
        "--log-level", choices=("info", "warning"), default="info", help=argparse.SUPPRESS
    )
    commands = whole.add_subparsers(
        required=True, dest="command", metavar="COMMAND", parser_class=_Parser
    )
    _train(commands.add_parser("train", help="everything on this machine, until solved"))
    _play(commands.add_parser("play", help="episodes with what a run has learnt; a video of them"))
    _export(commands.add_parser("export", help="what a run has learnt as an ONNX file"))
    report = commands.add_parser("report", help="a page about a run, with its pictures")
    shared.run_folder(report)
    report.add_argument(
        "--to", type=shared.path, metavar="FILE", help="default: RUN_DIR/report.html"
    )
    _log(
        commands.add_parser("log", help="figures to TensorBoard, Weights & Biases, MLflow, a table")
    )
    _explain(commands.add_parser("explain", help="what holds a run back, and what to set"))
    _tune_speed(commands.add_parser("tune-speed", help="how to spread a run over this machine"))
    _search(commands.add_parser("search", help="settings that learn better, found by training"))
    _sweep(commands.add_parser("sweep", help="a run with several seeds and settings, compared"))
    _compare(commands.add_parser("compare", help="runs side by side, seeds as repetitions"))
    _branch(commands.add_parser("branch", help="go on from a run's checkpoint in another folder"))
    options.broker_arguments(commands.add_parser("broker", help="the run's broker, alone"))
    learner = commands.add_parser("learner", help="a learner rank, alone (several: torchrun)")
    options.learner_arguments(learner)
    shared.log_form(learner)
    options.actor_arguments(
        commands.add_parser("actor", help="a sampler, alone; the run comes from the broker")
    )
    options.node_arguments(
        commands.add_parser("node", help="a machine's samplers; one command for each machine")
    )
    options.evaluator_arguments(
        commands.add_parser("evaluate", help="an evaluator, alone; the run comes from the broker")
    )
    _replay(commands.add_parser("replay", help="train again on what a run recorded, and compare"))
    _keygen(commands.add_parser("keygen", help="keys for the broker and for who may connect"))
    audit = commands.add_parser("audit", help="what became of every unroll, from all ledgers")
    audit.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="its folder, or the ledger's"
    )
    _trace(commands.add_parser("trace", help="when sampled unrolls were where, and for how long"))
    _top(commands.add_parser("top", help="a run while it runs: in the terminal, or as a page"))
    _doctor(commands.add_parser("doctor", help="looks at this machine, and says what to mend"))
    cluster_arguments.units(
        commands.add_parser("units", help="files that run it on many machines: systemd, Slurm"),
        _LISTED,
    )
    cluster_arguments.ray(
        commands.add_parser("ray", help="everything on a Ray cluster, until the run is over"),
        _LISTED,
    )
    _bench(commands.add_parser("bench", help="measure; one JSON line each"))
    shown = commands.add_parser("config", help="print the whole run, every default spelt out")
    shown.add_argument("run", help=_LISTED)
    shared.sets(shown)
    new = commands.add_parser("new", help="a run file to begin with, for an environment")
    new.add_argument("env", metavar="ENV_ID", help="as gymnasium has it, or module:factory")
    new.add_argument(
        "--algorithm", choices=("ppo", "appo", "impala"), default="ppo", help="default: ppo"
    )
    new.add_argument("--out", type=shared.path, metavar="FILE", help="default: NAME.toml here")
    for name, command in commands.choices.items():
        command.epilog = examples.epilog(name)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
    return whole


def _train(train: argparse.ArgumentParser) -> None:
    train.add_argument("run", help=_LISTED)
    shared.sets(train)
    train.add_argument("--actors", type=int, help="sampler processes")
    train.add_argument("--seed", type=int, help="of networks, environments and actions")
    train.add_argument("--stop-return", type=float, help="mean of the latest episodes")
    train.add_argument("--stop-steps", type=int, help="limit on agent steps trained on")
    train.add_argument("--stop-seconds", type=float, help="limit on seconds at work")
    train.add_argument(
        "--out", type=shared.path, help="the run's folder; default: a new headrace-runs/NAME"
    )
    train.add_argument(
        "--resume", action="store_true", help="continue its newest checkpoint, by its own settings"
    )
    train.add_argument(
        "--evaluate",
        action=argparse.BooleanOptionalAction,
        help="an evaluator beside it, as by default: [evaluate] says how it plays; the best weights"
        " are kept",
    )
    train.add_argument(
        "--record",
        action="store_true",
        help="keep every batch in the run's folder, so that headrace replay can train on it again",
    )
    train.add_argument("--quiet", action="store_true", help="no live view, warnings only")
    shared.web(train, "serve the page of the run there, too; default: 8800, 0 takes a free one")
    train.add_argument(
        "--debug",
        action="store_true",
        help="one process, one thread, no view, no evaluations: breakpoint() works in your code",
    )


def _tune_speed(tune: argparse.ArgumentParser) -> None:
    tune.add_argument("run", help=_LISTED)
    shared.sets(tune)
    tune.add_argument(
        "--budget", type=shared.time, default=60.0, metavar="TIME", help="default: 60s"
    )
    tune.add_argument("--to", type=shared.path, metavar="FILE", help="default: NAME-fast.toml here")


def _search(search: argparse.ArgumentParser) -> None:
    search.add_argument("run", help=_LISTED)
    shared.sets(search)
    search.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY[=VALUES]",
        help="LOW..HIGH, or A,B,..; without values: as it ships; default: search.vary, else what"
        " ships for the run",
    )
    search.add_argument(
        "--metric",
        help="evaluation, return, time_to_return, steps_to_return; of env.metrics: NAME,"
        " evaluation.NAME; default: search.metric",
    )
    search.add_argument(
        "--budget", type=shared.time, required=True, metavar="TIME", help="2h, 20m or 90s from now"
    )
    search.add_argument("--trials", type=shared.count, help="at most so many in all")
    seeds = "of each trial: 1..3, or 1,4,7; default: search.seeds, else the run's own"
    search.add_argument("--seeds", help=seeds)
    search.add_argument("--parallel", type=shared.count, help="at a time; default: by the cores")
    search.add_argument(
        "--population", type=shared.count, metavar="N", help="so many, that copy from one another"
    )
    search.add_argument(
        "--every",
        type=shared.steps,
        default=100_000,
        metavar="STEPS",
        help="a population is compared; default: 100000",
    )
    search.add_argument("--out", type=shared.path, help="default: headrace-searches/NAME")


def _sweep(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("run", help=_LISTED)
    shared.sets(sweep)
    sweep.add_argument("--seeds", default="1..3", help="1..5, or 1,4,7; default: 1..3")
    sweep.add_argument("--parallel", type=shared.count, help="at a time; default: by the cores")
    sweep.add_argument("--out", type=shared.path, help="default: headrace-sweeps/NAME")


def _log(log: argparse.ArgumentParser) -> None:
    shared.run_folder(log)
    log.add_argument(
        "--to",
        required=True,
        metavar="SINK",
        help="tensorboard, wandb, mlflow, trackio, csv, parquet; or module:class, your callbacks",
    )
    log.add_argument("--follow", action="store_true", help="until the run is over")


def _compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("folders", nargs="+", type=shared.path, metavar="DIR", help="runs")
    compare.add_argument(
        "--metric",
        default="return",
        help="return (default), evaluation; of env.metrics: NAME, evaluation.NAME",
    )
    compare.add_argument("--html", type=shared.path, metavar="FILE", help="a page with the curves")
    compare.add_argument("--csv", type=shared.path, metavar="FILE", help="the table")


def _explain(explain: argparse.ArgumentParser) -> None:
    explain.add_argument(
        "folder", nargs="?", type=shared.path, metavar="RUN_DIR", help="what a run has written"
    )
    explain.add_argument(
        "--broker",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="a run that trains, instead; default: the one on this machine",
    )
    shared.key(explain, "none; any of the run's will do")
    explain.add_argument(
        "--apply", type=shared.path, metavar="FILE", help="write the run with the remedy there"
    )


def _branch(branch: argparse.ArgumentParser) -> None:
    shared.run_folder(branch)
    branch.add_argument("out", type=shared.path, metavar="OUT", help="the new folder")
    branch.add_argument("--version", type=int, help="of the checkpoint; default: the newest")
    shared.sets(branch)


def _play(play: argparse.ArgumentParser) -> None:
    shared.run_folder(play)
    play.add_argument("--episodes", type=int, default=10, help="default: 10")
    play.add_argument(
        "--sampled", action="store_true", help="actions are drawn, as in training; default: greedy"
    )
    play.add_argument("--seed", type=int, help="of the environments; default: evaluate.seed")
    play.add_argument(
        "--video",
        type=shared.path,
        metavar="FILE",
        help=".mp4 or .gif; one environment plays, not many",
    )
    shared.checkpoint(play)
    shared.sets(play)


def _export(export: argparse.ArgumentParser) -> None:
    shared.run_folder(export)
    export.add_argument("--onnx", action="store_true", help="the format; there is no other yet")
    export.add_argument(
        "--out",
        type=shared.path,
        metavar="FILE",
        help="default: RUN_DIR/model.onnx; FILE.json beside it",
    )
    shared.checkpoint(export)


def _replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="a folder of headrace train --record"
    )


def _keygen(keygen: argparse.ArgumentParser) -> None:
    keygen.add_argument(
        "folder", type=shared.path, metavar="FOLDER", help="made if it is not there"
    )
    for role in ROLES:
        keygen.add_argument(
            f"--{role}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"a key of its own for this {role}; may be said again",
        )


def _trace(trace: argparse.ArgumentParser) -> None:
    trace.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="its folder, or the ledger's"
    )
    trace.add_argument(
        "--otlp",
        metavar="URL",
        help="also send them by OTLP over HTTP; without a path: to /v1/traces there",
    )


def _top(top: argparse.ArgumentParser) -> None:
    top.add_argument("--broker", help="its address; default: the one that runs on this machine")
    shared.key(top, "none; any of the run's will do")
    shared.web(top, "serve the page there instead; default: 8800, 0 takes a free one")
    top.add_argument("--host", default="127.0.0.1", help="of the page; default: 127.0.0.1")
    shared.page_name(top)


def _doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--run", help=f"this run too: {_LISTED}")
    shared.sets(doctor)
    doctor.add_argument("--broker", help="this broker too: its address")
    shared.key(doctor, "the watcher's in the folder security.keys")


def _bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("what", choices=benches.NAMES, help="which benchmark")
    bench.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"sampler: {_LISTED}; learn: which gates, default: every one; crowd: how many;"
        " lag: a run, how many seeds, and lags",
    )
    told = "learn: so many runs of each gate, seeds 1 to N; default: the gate's own seeds"
    bench.add_argument("--runs", type=shared.count, default=0, metavar="N", help=told)
    shared.sets(bench)
