"""Commands that find better settings: explain, tune-speed, search, sweep, compare."""

import argparse
from pathlib import Path

from headrace.broker.errors import install_extra
from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.config import run_file

# ---- explain -------------------------------------------------------------------------------------


def _explain_arguments(explain: argparse.ArgumentParser) -> None:
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


def _explain(given: argparse.Namespace) -> int:
    from headrace.launch.explain import explain, running

    if given.broker is not None and given.folder is None and given.apply is None:
        return running.explain(given.broker, key=given.key)
    if given.broker is not None or given.folder is None:
        raise run_file.ConfigError(
            "name the run's folder, or the --broker of one that trains; --apply needs the folder"
        )
    return explain.explain(given.folder, apply=given.apply)


EXPLAIN = Command("what holds a run back, and what to set", _explain_arguments, _explain)

# ---- tune-speed ----------------------------------------------------------------------------------


def _tune_speed_arguments(tune: argparse.ArgumentParser) -> None:
    shared.run(tune)
    shared.sets(tune)
    tune.add_argument(
        "--budget", type=shared.time, default=60.0, metavar="TIME", help="default: 60s"
    )
    tune.add_argument("--to", type=shared.path, metavar="FILE", help="default: NAME-fast.toml here")


def _tune_speed(given: argparse.Namespace) -> int:
    from headrace.launch.explain import tune_speed

    to = given.to or Path(f"{Path(given.run).stem}-fast.toml")
    return tune_speed.tune(given.run, sets=given.set, budget_s=given.budget, to=to)


TUNE_SPEED = Command("how to spread a run over this machine", _tune_speed_arguments, _tune_speed)

# ---- search --------------------------------------------------------------------------------------


def _search_arguments(search: argparse.ArgumentParser) -> None:
    shared.run(search)
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


def _search(given: argparse.Namespace) -> int:
    from headrace.launch.comparison.sweep import read_seeds

    try:
        from headrace.launch.search import population, search
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise run_file.ConfigError(
            f"headrace search needs Optuna: {install_extra('search')}"
        ) from None
    plan = search.plan(
        given.run,
        sets=given.set,
        vary=given.vary,
        metric=given.metric,
        seeds=read_seeds(given.seeds) if given.seeds else (),
        out=given.out,
        budget_s=given.budget,
        most_trials=given.trials,
        parallel=given.parallel,
        sections=population.SECTIONS if given.population else (),
    )
    if given.population:
        return population.search(plan, members=given.population, every=given.every)
    return search.search(plan)


SEARCH = Command("settings that learn better, found by training", _search_arguments, _search)

# ---- sweep ---------------------------------------------------------------------------------------


def _sweep_arguments(sweep: argparse.ArgumentParser) -> None:
    shared.run(sweep)
    shared.sets(sweep)
    sweep.add_argument("--seeds", default="1..3", help="1..5, or 1,4,7; default: 1..3")
    sweep.add_argument("--parallel", type=shared.count, help="at a time; default: by the cores")
    sweep.add_argument("--out", type=shared.path, help="default: headrace-sweeps/NAME")


def _sweep(given: argparse.Namespace) -> int:
    from headrace.launch.comparison import sweep

    return sweep.sweep(
        given.run, given.set, seeds=given.seeds, out=given.out, parallel=given.parallel
    )


SWEEP = Command("a run with several seeds and settings, compared", _sweep_arguments, _sweep)

# ---- compare -------------------------------------------------------------------------------------


def _compare_arguments(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("folders", nargs="+", type=shared.path, metavar="DIR", help="runs")
    compare.add_argument(
        "--metric",
        default="return",
        help="return (default), evaluation; of env.metrics: NAME, evaluation.NAME",
    )
    compare.add_argument("--html", type=shared.path, metavar="FILE", help="a page with the curves")
    compare.add_argument("--csv", type=shared.path, metavar="FILE", help="the table")


def _compare(given: argparse.Namespace) -> int:
    from headrace.launch.comparison import compare

    return compare.compare(given.folders, page=given.html, table=given.csv, metric=given.metric)


COMPARE = Command("runs side by side, seeds as repetitions", _compare_arguments, _compare)
