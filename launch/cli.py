"""The `headrace` command: what each command does. Imports only what the command needs."""

import argparse
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    from headrace.broker.errors import UserError, install_extra
    from headrace.launch import arguments
    from headrace.launch.config import origins, run_file
    from headrace.launch.config.starts import run_folder
    from headrace.launch.process import logs, runtime
    from headrace.launch.roles.options import Address, PeerOptions, default_name
except KeyboardInterrupt:  # too early for main to catch it
    raise SystemExit(3) from None


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 our fault, 2 your input, 3 a limit came first, 4 it
    diverged."""
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
    except UserError as error:
        logs.refuse(error)
        return error.status
    except BrokenPipeError:
        return runtime.OK  # headrace config ... | head
    except KeyboardInterrupt:  # a run that has started handles it itself
        return runtime.LIMIT


def _train(given: argparse.Namespace) -> int:
    from headrace.launch.config import starts
    from headrace.launch.local import train

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
    name = run_file.load(given.run, sets).run.name
    out = given.out or run_folder(Path("headrace-runs"), name, newest=given.resume)
    start = starts.begin(given.run, sets, out, resume=given.resume)
    if given.debug:
        from headrace.launch.one_process import debug

        return debug.debug(start, record=given.record, evaluate=bool(given.evaluate))
    options = train.Options(
        quiet=given.quiet, evaluate=given.evaluate, record=given.record, web=given.web
    )
    return train.train(start, options)


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


def _log(given: argparse.Namespace) -> int:
    from headrace.launch.sinks import follow

    logs.start(f"log-{given.to}", quiet=given.log_level == "warning")
    return follow.follow(given.folder, given.to, wait=given.follow)


def _explain(given: argparse.Namespace) -> int:
    from headrace.launch.explain import explain, running

    if given.broker is not None and given.folder is None and given.apply is None:
        return running.explain(given.broker, key=given.key)
    if given.broker is not None or given.folder is None:
        raise run_file.ConfigError(
            "name the run's folder, or the --broker of one that trains; --apply needs the folder"
        )
    return explain.explain(given.folder, apply=given.apply)


def _tune_speed(given: argparse.Namespace) -> int:
    from headrace.launch.explain import tune_speed

    to = given.to or Path(f"{Path(given.run).stem}-fast.toml")
    return tune_speed.tune(given.run, sets=given.set, budget_s=given.budget, to=to)


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


def _sweep(given: argparse.Namespace) -> int:
    from headrace.launch.comparison import sweep

    return sweep.sweep(
        given.run, given.set, seeds=given.seeds, out=given.out, parallel=given.parallel
    )


def _compare(given: argparse.Namespace) -> int:
    from headrace.launch.comparison import compare

    return compare.compare(given.folders, page=given.html, table=given.csv, metric=given.metric)


def _branch(given: argparse.Namespace) -> int:
    from headrace.launch.local import branch

    logs.start("branch", quiet=False)
    return branch.branch(given.folder, given.out, version=given.version, sets=given.set)


def _broker(given: argparse.Namespace) -> int:
    from headrace.launch.roles import broker

    _start_log("broker", given)
    run = run_file.load(given.run, given.set)
    options = broker.Options(
        bind=given.bind or run.broker.bind,
        metrics=Address(given.metrics_host, given.metrics_port),
        report=given.report,
        ledger=given.ledger,
        key=given.key,
        insecure=given.insecure,
        page_names=given.page_name,
    )
    return broker.serve(run, options)


def _learner(given: argparse.Namespace) -> int:
    from headrace.launch.roles.learner import main as learn

    return learn(given)


def _actor(given: argparse.Namespace) -> int:
    from headrace.launch.roles import sampler

    _start_log("actor", given)
    return sampler.sample(
        _peer(given, name=default_name(), **_sampling(given)),
        seed=given.seed if given.seed is not None else runtime.incarnation() % 2**31,
        shelf=given.shelf,
    )


def _node(given: argparse.Namespace) -> int:
    from headrace.launch.node import node
    from headrace.launch.node.notice import Notice

    _start_log("node", given)
    return node.node(
        _peer(given, name=socket.gethostname(), **_sampling(given)),
        samplers=given.samplers,
        notice=Notice(given.notice, given.notice_header),
    )


def _evaluate(given: argparse.Namespace) -> int:
    from headrace.launch.roles import evaluator

    _start_log("evaluator", given)
    own = {key: getattr(given, key) for key in ("episodes", "every_s", "share")}
    return evaluator.evaluate(_peer(given, name=default_name(), **own), out=given.out)


def _start_log(role: str, given: argparse.Namespace) -> None:
    logs.start(role, quiet=given.log_level == "warning", form=logs.chosen(given.log))


def _sampling(given: argparse.Namespace) -> dict[str, Any]:
    """Returns what was given of the section [actor]."""
    return {key: getattr(given, key) for key in ("groups", "stepping", "drain_s")}


def _peer(given: argparse.Namespace, *, name: str, **sets: Any) -> PeerOptions:
    """Returns what was given for a peer; `name`: if none was, `sets`: what was said of its
    section."""
    return PeerOptions(
        given.broker,
        given.name or name,
        sets={key: value for key, value in sets.items() if value is not None},
        ledger=getattr(given, "ledger", None),
        metrics=Address(given.metrics_host, given.metrics_port),
        key=given.key,
        allow=given.allow,
    )


def _keygen(given: argparse.Namespace) -> int:
    from headrace.broker.security.keys import ROLES
    from headrace.launch import keygen

    return keygen.keygen(given.folder, {role: getattr(given, role) for role in ROLES})


def _replay(given: argparse.Namespace) -> int:
    from headrace.launch.results import replay

    logs.start("replay")
    return replay.replay(given.folder)


def _audit(given: argparse.Namespace) -> int:
    from headrace.launch.results import audit_table

    return audit_table.audit_table(given.folder)


def _trace(given: argparse.Namespace) -> int:
    from headrace.launch.trace import trace_table

    return trace_table.trace_table(given.folder, otlp=given.otlp)


def _top(given: argparse.Namespace) -> int:
    from headrace.launch.monitor import top

    return top.top(
        given.broker, key=given.key, port=given.web, host=given.host, names=given.page_name
    )


def _doctor(given: argparse.Namespace) -> int:
    from headrace.launch.doctor import doctor

    return doctor.doctor(given.run, given.set, address=given.broker, key=given.key)


def _units(given: argparse.Namespace) -> int:
    from headrace.launch.deploy import cluster, units

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
        cluster=cluster.Cluster(given.image, given.namespace, given.storage),
    )


def _ray(given: argparse.Namespace) -> int:
    from headrace.launch.on_ray import run as on_ray

    _start_log("ray", given)
    run = run_file.load(given.run, given.set)
    out = (given.out or Path("headrace-runs", run.run.name)).absolute()
    own = {key: getattr(given, key) for key in ("address", "ranks", "learners", "wait_s")}
    return on_ray.ray_run(run, on_ray.Options(out=out, **own))


def _bench(given: argparse.Namespace) -> int:
    from headrace.launch import benches

    return benches.bench(given.what, given.names, given.set, runs=given.runs)


def _config(given: argparse.Namespace) -> int:
    run = run_file.load(given.run, given.set)
    whence = origins.origins(given.run, given.set, algorithm=run.algorithm.name)
    print(run_file.effective(run, origins=whence), end="")  # noqa: T201
    return runtime.OK


def _new(given: argparse.Namespace) -> int:
    from headrace.launch import new_run

    logs.start("new", quiet=True)
    return new_run.new(given.env, given.out, algorithm=given.algorithm)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "play": _play,
    "export": _export,
    "report": _report,
    "log": _log,
    "explain": _explain,
    "tune-speed": _tune_speed,
    "search": _search,
    "sweep": _sweep,
    "compare": _compare,
    "branch": _branch,
    "broker": _broker,
    "learner": _learner,
    "actor": _actor,
    "node": _node,
    "evaluate": _evaluate,
    "replay": _replay,
    "audit": _audit,
    "trace": _trace,
    "keygen": _keygen,
    "top": _top,
    "doctor": _doctor,
    "units": _units,
    "ray": _ray,
    "bench": _bench,
    "config": _config,
    "new": _new,
}


if __name__ == "__main__":
    sys.exit(main())
