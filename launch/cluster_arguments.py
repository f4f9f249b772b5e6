"""The options of the commands that run on many machines at once: units, ray."""

import argparse

from headrace.launch import shared_options as shared


def units(units: argparse.ArgumentParser, runs: str) -> None:
    """Adds the options of `headrace units`; `runs`: what a run may be."""
    units.add_argument(
        "kind",
        choices=("systemd", "supervisor", "slurm", "kubernetes", "skypilot"),
        help="what starts it",
    )
    units.add_argument("--run", required=True, help=runs)
    shared.sets(units)
    units.add_argument(
        "--nodes", default="1", metavar="N|NAME,NAME", help="sampler machines; default: 1"
    )
    units.add_argument(
        "--broker",
        help="its address, as its peers reach it (not slurm, skypilot); default: broker.bind, or"
        " the service's name",
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


def ray(ray: argparse.ArgumentParser, runs: str) -> None:
    """Adds the options of `headrace ray`."""
    ray.add_argument("run", help=runs)
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
