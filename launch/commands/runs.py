"""Commands that begin a run: train, branch, config, new."""

import argparse
from collections.abc import Callable
from pathlib import Path

from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.config import origins, run_file
from headrace.launch.config.starts import run_folder
from headrace.launch.policies import split
from headrace.launch.process import folder_lock, logs, runtime

# ---- train ---------------------------------------------------------------------------------------


def _train_arguments(train: argparse.ArgumentParser) -> None:
    shared.run(train)
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
    # Of the broker: samplers of several policies come from elsewhere, and so may the learner.
    train.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    train.add_argument("--elsewhere", action="store_true", help=argparse.SUPPRESS)
    # The brokers of the other policies, the folders of those that learn no more, and the code that
    # their runs name.
    train.add_argument("--beside", action="append", default=[], help=argparse.SUPPRESS)
    train.add_argument(
        "--done", type=shared.path, action="append", default=[], help=argparse.SUPPRESS
    )
    train.add_argument("--allow", action="append", default=[], help=argparse.SUPPRESS)


def _train(given: argparse.Namespace) -> int:
    from headrace.launch.config import starts
    from headrace.launch.local import train
    from headrace.launch.local.options import Options

    sets = list(given.set)
    for key, value in (
        ("actor.count", given.actors),
        ("run.seed", given.seed),
        ("stop.return", given.stop_return),
        ("stop.steps", given.stop_steps),
        ("stop.seconds", given.stop_seconds),
    ):
        if value is not None:
            sets.append(f"{key}={value}")
    if split.has_policies(given.run):
        return _train_several(given, sets)
    options = Options(
        quiet=given.quiet,
        evaluate=given.evaluate,
        record=given.record,
        web=given.web,
        endpoint=given.endpoint,
        elsewhere=given.elsewhere,
        beside=tuple(given.beside),
        done=tuple(given.done),
        allow=tuple(given.allow),
    )

    def work(out: Path) -> int:
        start = starts.begin(given.run, sets, out, resume=given.resume)
        if given.debug:
            from headrace.launch.one_process import debug

            return debug.debug(start, record=given.record, evaluate=bool(given.evaluate))
        return train.train(start, options)

    return _in_own_folder(given, run_file.load(given.run, sets).run.name, work)


def _in_own_folder(given: argparse.Namespace, name: str, work: Callable[[Path], int]) -> int:
    """Works in the folder that was asked for, or in the next one of this name. Of two runs that
    begin in the same moment the one that finds it taken goes on to the one after it."""
    while True:
        out = given.out or run_folder(
            Path("headrace-runs"),
            name,
            newest=given.resume,
            taken=lambda folder: folder_lock.in_use(folder, "train"),
        )
        try:
            return work(out)
        except folder_lock.FolderInUseError:
            if given.out or given.resume:
                raise


def _train_several(given: argparse.Namespace, sets: list[str]) -> int:
    """Trains a run of several policies."""
    from headrace.launch.policies import train
    from headrace.launch.policies.policy import Options

    if given.debug:
        raise run_file.ConfigError("--debug is for a run of one policy; leave it out")
    name = run_file.raw(given.run)[1].get("run", {}).get("name", Path(given.run).stem)
    policies = split.split(given.run, sets)
    options = Options(given.quiet, given.evaluate, given.record, given.web, given.resume)
    return _in_own_folder(given, name, lambda out: train.train(policies, out, options))


TRAIN = Command("everything on this machine, until solved", _train_arguments, _train)

# ---- branch --------------------------------------------------------------------------------------


def _branch_arguments(branch: argparse.ArgumentParser) -> None:
    shared.run_folder(branch)
    branch.add_argument("out", type=shared.path, metavar="OUT", help="the new folder")
    branch.add_argument("--version", type=int, help="of the checkpoint; default: the newest")
    shared.sets(branch)


def _branch(given: argparse.Namespace) -> int:
    from headrace.launch.local import branch

    logs.start("branch", quiet=False)
    return branch.branch(given.folder, given.out, version=given.version, sets=given.set)


BRANCH = Command("go on from a run's checkpoint in another folder", _branch_arguments, _branch)

# ---- config --------------------------------------------------------------------------------------


def _config_arguments(config: argparse.ArgumentParser) -> None:
    shared.run(config)
    shared.sets(config)


def _config(given: argparse.Namespace) -> int:
    run = run_file.load(given.run, given.set)
    whence = origins.origins(given.run, given.set, algorithm=run.algorithm.name)
    print(run_file.effective(run, origins=whence), end="")  # noqa: T201
    return runtime.OK


CONFIG = Command("print the whole run, every default spelt out", _config_arguments, _config)

# ---- new -----------------------------------------------------------------------------------------


def _new_arguments(new: argparse.ArgumentParser) -> None:
    new.add_argument("env", metavar="ENV_ID", help="as gymnasium has it, or module:factory")
    new.add_argument(
        "--algorithm", choices=("ppo", "appo", "impala"), default="ppo", help="default: ppo"
    )
    new.add_argument("--out", type=shared.path, metavar="FILE", help="default: NAME.toml here")


def _new(given: argparse.Namespace) -> int:
    from headrace.launch import new_run

    logs.start("new", quiet=True)
    return new_run.new(given.env, given.out, algorithm=given.algorithm)


NEW = Command("a run file to begin with, for an environment", _new_arguments, _new)
