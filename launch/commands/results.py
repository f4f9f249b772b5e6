"""Commands about what a run has written: play, rate, export, report, log, replay, audit, trace."""

import argparse

from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.process import logs

# ---- play ----------------------------------------------------------------------------------------


def _play_arguments(play: argparse.ArgumentParser) -> None:
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


def _play(given: argparse.Namespace) -> int:
    from headrace.launch.config import starts
    from headrace.launch.policies import play as policies
    from headrace.launch.results import play

    logs.start("play", quiet=True)
    played = policies.play_all if starts.policy_folders(given.folder) else play.play
    return played(
        given.folder,
        which=given.checkpoint,
        episodes=given.episodes,
        greedy=not given.sampled,
        seed=given.seed,
        video=given.video,
        sets=given.set,
    )


PLAY = Command("episodes with what a run has learnt; a video of them", _play_arguments, _play)

# ---- rate ----------------------------------------------------------------------------------------


def _rate_arguments(rate: argparse.ArgumentParser) -> None:
    shared.run_folder(rate)
    rate.add_argument(
        "--players", type=shared.count, default=6, help="checkpoints of the run; default: 6"
    )
    rate.add_argument("--games", type=shared.count, default=100, help="of each pair; default: 100")
    rate.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="WHO",
        help="plays, too, beside random and league.others: module:function, or the folder of a run"
        " or of a checkpoint",
    )
    rate.add_argument(
        "--greedy", action="store_true", help="the likeliest action; default: drawn, as in training"
    )


def _rate(given: argparse.Namespace) -> int:
    from headrace.launch.ratings import rate

    logs.start("rate", quiet=True)
    return rate.rate(
        given.folder,
        players=given.players,
        games=given.games,
        others=given.against,
        greedy=given.greedy,
    )


RATE = Command("games between a run's checkpoints: ratings and points", _rate_arguments, _rate)

# ---- export --------------------------------------------------------------------------------------


def _export_arguments(export: argparse.ArgumentParser) -> None:
    shared.run_folder(export)
    export.add_argument("--onnx", action="store_true", help="the format; there is no other yet")
    export.add_argument(
        "--out",
        type=shared.path,
        metavar="FILE",
        help="default: RUN_DIR/model.onnx; FILE.json beside it",
    )
    shared.checkpoint(export)
    export.add_argument("--policy", type=int, metavar="N", help="of a population: which of it")


def _export(given: argparse.Namespace) -> int:
    from headrace.launch.export import export

    logs.start("export", quiet=True)
    return export.export(given.folder, which=given.checkpoint, policy=given.policy, out=given.out)


EXPORT = Command("what a run has learnt as an ONNX file", _export_arguments, _export)

# ---- report --------------------------------------------------------------------------------------


def _report_arguments(report: argparse.ArgumentParser) -> None:
    shared.run_folder(report)
    report.add_argument(
        "--to", type=shared.path, metavar="FILE", help="default: RUN_DIR/report.html"
    )


def _report(given: argparse.Namespace) -> int:
    from headrace.launch.results import report

    return report.report(given.folder, to=given.to)


REPORT = Command("a page about a run, with its pictures", _report_arguments, _report)

# ---- log -----------------------------------------------------------------------------------------


def _log_arguments(log: argparse.ArgumentParser) -> None:
    shared.run_folder(log)
    log.add_argument(
        "--to",
        required=True,
        metavar="SINK",
        help="tensorboard, wandb, mlflow, trackio, csv, parquet; or module:class, your callbacks",
    )
    log.add_argument("--follow", action="store_true", help="until the run is over")


def _log(given: argparse.Namespace) -> int:
    from headrace.launch.sinks import follow

    logs.start(f"log-{given.to}", quiet=given.log_level == "warning")
    return follow.follow(given.folder, given.to, wait=given.follow)


LOG = Command("figures to TensorBoard, Weights & Biases, MLflow, a table", _log_arguments, _log)

# ---- replay --------------------------------------------------------------------------------------


def _replay_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="a folder of headrace train --record"
    )


def _replay(given: argparse.Namespace) -> int:
    from headrace.launch.results import replay

    logs.start("replay")
    return replay.replay(given.folder)


REPLAY = Command("train again on what a run recorded, and compare", _replay_arguments, _replay)

# ---- audit ---------------------------------------------------------------------------------------


def _audit_arguments(audit: argparse.ArgumentParser) -> None:
    audit.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="its folder, or the ledger's"
    )


def _audit(given: argparse.Namespace) -> int:
    from headrace.launch.results import audit_table

    return audit_table.audit_table(given.folder)


AUDIT = Command("what became of every unroll, from all ledgers", _audit_arguments, _audit)

# ---- trace ---------------------------------------------------------------------------------------


def _trace_arguments(trace: argparse.ArgumentParser) -> None:
    trace.add_argument(
        "folder", type=shared.path, metavar="RUN_DIR", help="its folder, or the ledger's"
    )
    trace.add_argument(
        "--otlp",
        metavar="URL",
        help="also send them by OTLP over HTTP; without a path: to /v1/traces there",
    )


def _trace(given: argparse.Namespace) -> int:
    from headrace.launch.trace import trace_table

    return trace_table.trace_table(given.folder, otlp=given.otlp)


TRACE = Command("when sampled unrolls were where, and for how long", _trace_arguments, _trace)
