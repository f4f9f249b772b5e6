"""Commands about the machines of a run: keygen, top, doctor, plan, units, ray."""

import argparse
from pathlib import Path

from headrace.broker.security.keys import ROLES
from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.config import run_file

# ---- keygen --------------------------------------------------------------------------------------


def _keygen_arguments(keygen: argparse.ArgumentParser) -> None:
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


def _keygen(given: argparse.Namespace) -> int:
    from headrace.launch import keygen

    return keygen.keygen(given.folder, {role: getattr(given, role) for role in ROLES})


KEYGEN = Command("keys for the broker and for who may connect", _keygen_arguments, _keygen)

# ---- top -----------------------------------------------------------------------------------------


def _top_arguments(top: argparse.ArgumentParser) -> None:
    top.add_argument("--broker", help="its address; default: the one that runs on this machine")
    shared.key(top, "none; any of the run's will do")
    shared.web(top, "serve the page there instead; default: 8800, 0 takes a free one")
    top.add_argument("--host", default="127.0.0.1", help="of the page; default: 127.0.0.1")
    shared.page_name(top)


def _top(given: argparse.Namespace) -> int:
    from headrace.launch.monitor import top

    return top.top(
        given.broker, key=given.key, port=given.web, host=given.host, names=given.page_name
    )


TOP = Command("a run while it runs: in the terminal, or as a page", _top_arguments, _top)

# ---- doctor --------------------------------------------------------------------------------------


def _doctor_arguments(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--run", help=f"this run too: {shared.RUNS}")
    shared.sets(doctor)
    doctor.add_argument("--broker", help="this broker too: its address")
    shared.key(doctor, "the watcher's in the folder security.keys")


def _doctor(given: argparse.Namespace) -> int:
    from headrace.launch.doctor import doctor

    return doctor.doctor(given.run, given.set, address=given.broker, key=given.key)


DOCTOR = Command("looks at this machine, and says what to mend", _doctor_arguments, _doctor)

# ---- plan ----------------------------------------------------------------------------------------


def _plan_arguments(plan: argparse.ArgumentParser) -> None:
    shared.run(plan)
    shared.sets(plan)
    plan.add_argument(
        "--prices",
        type=shared.path,
        metavar="FILE",
        help="machines and what they cost, as a SkyPilot catalogue; default: this machine only",
    )
    plan.add_argument("--spot", action="store_true", help="by the column SpotPrice")
    plan.add_argument("--region", default="", help="by the column Region; default: any")
    plan.add_argument(
        "--machine",
        action="append",
        default=[],
        metavar="NAME",
        help="choose from these only; may be said again",
    )
    plan.add_argument("--steps-per-s", type=shared.steps, metavar="N", help="the goal")
    plan.add_argument("--steps", type=shared.steps, metavar="N", help="the goal, with --deadline")
    plan.add_argument("--deadline", type=shared.time, metavar="TIME", help="2h: by then, --steps")
    plan.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=shared.gpu_rate,
        metavar="NAME=STEPS_PER_S",
        help="what a learner rank trains on one; may be said again",
    )
    plan.add_argument(
        "--costs",
        type=shared.path,
        metavar="PATH",
        help="do not measure, take these: of a run's folder, or a file",
    )
    plan.add_argument(
        "--seconds", type=shared.count, default=10, help="of the measurement; default: 10"
    )
    plan.add_argument(
        "--round-trip",
        type=shared.time,
        metavar="TIME",
        default=0.0,
        help="0.1s: between a machine that plays and the broker; default: none",
    )
    plan.add_argument(
        "--line",
        type=shared.count,
        metavar="MBIT",
        default=0,
        help="a second, that such a machine's line carries; default: enough",
    )
    plan.add_argument(
        "--host", default="10.0.0.1", help="the broker's, in the lines; default: 10.0.0.1"
    )
    plan.add_argument("--to", type=shared.path, metavar="FILE", help="the figures as JSON")
    plan.add_argument(
        "--picture", type=shared.path, metavar="FILE", help="what other rates cost, as SVG"
    )


def _plan(given: argparse.Namespace) -> int:
    from headrace.launch.plan import plan
    from headrace.launch.plan.far_line import Line

    if (given.steps is None) != (given.deadline is None) or (given.steps and given.steps_per_s):
        raise run_file.ConfigError("the goal is --steps-per-s, or --steps and --deadline together")
    rate = given.steps / given.deadline if given.steps else given.steps_per_s
    asked = plan.Asked(
        prices=given.prices,
        costs=given.costs,
        seconds=given.seconds,
        gpus=dict(given.gpu),
        only=given.machine,
        spot=given.spot,
        region=given.region,
        rate=rate,
        line=Line(given.round_trip, given.line),
        host=given.host,
        to=given.to,
        picture=given.picture,
    )
    return plan.plan(given.run, given.set, asked)


PLAN = Command("the cheapest machines for a run", _plan_arguments, _plan)

# ---- units ---------------------------------------------------------------------------------------


def _units_arguments(units: argparse.ArgumentParser) -> None:
    targets = ("systemd", "supervisor", "slurm", "kubernetes", "skypilot")
    units.add_argument("kind", choices=targets, help="what starts it")
    units.add_argument("--run", required=True, help=shared.RUNS)
    shared.sets(units)
    units.add_argument(
        "--nodes", default="1", metavar="N|NAME,NAME", help="sampler machines; default: 1"
    )
    units.add_argument(
        "--broker",
        help="its address, as its peers reach it, A,B of several (not slurm, skypilot); default:"
        " broker.bind, or the service's name",
    )
    units.add_argument("--ranks", type=int, default=1, help="on a learner machine; default: 1")
    units.add_argument("--learners", type=int, default=1, help="learner machines; default: 1")
    units.add_argument(
        "--key-folder",
        type=shared.path,
        metavar="DIR",
        help="where these machines have their keys; default: security.keys",
    )
    units.add_argument(
        "--bin",
        type=shared.path,
        metavar="DIR",
        help="where they have headrace and python; default: where this machine has them",
    )
    units.add_argument("--image", help="kubernetes: the image; default: headrace:RELEASE")
    units.add_argument("--namespace", help="kubernetes: default: headrace")
    units.add_argument(
        "--storage", metavar="CLASS", help="kubernetes: of its volumes; default: the cluster's"
    )
    units.add_argument(
        "--out", type=shared.path, metavar="DIR", help="write into it; default: print"
    )


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


UNITS = Command("files that run it on many machines: systemd, Slurm", _units_arguments, _units)

# ---- ray -----------------------------------------------------------------------------------------


def _ray_arguments(ray: argparse.ArgumentParser) -> None:
    shared.run(ray)
    shared.sets(ray)
    ray.add_argument(
        "--address", default="auto", help="HOST:PORT of Ray; default: the cluster of this machine"
    )
    ray.add_argument(
        "--out",
        type=shared.path,
        help="the run's folder, which all machines share; default: headrace-runs/NAME",
    )
    ray.add_argument(
        "--ranks", type=shared.count, default=1, help="on a learner machine; default: 1"
    )
    ray.add_argument(
        "--learners", type=shared.count, default=1, help="learner machines; default: 1"
    )
    ray.add_argument(
        "--wait-s",
        type=float,
        default=600.0,
        help="for a place for broker, evaluator and learner; default: 600",
    )
    shared.log_form(ray)


def _ray(given: argparse.Namespace) -> int:
    from headrace.launch.on_ray import run as on_ray

    shared.start_log("ray", given)
    run = run_file.load(given.run, given.set)
    out = (given.out or Path("headrace-runs", run.run.name)).absolute()
    own = {key: getattr(given, key) for key in ("address", "ranks", "learners", "wait_s")}
    return on_ray.ray_run(run, on_ray.Options(out=out, **own))


RAY = Command("everything on a Ray cluster, until the run is over", _ray_arguments, _ray)
