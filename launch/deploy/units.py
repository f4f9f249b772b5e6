"""`headrace units`: a run as files for a process supervisor (systemd, Slurm, ..) on many machines.

The files are templates with {{words}} in launch/deploy/systemd, supervisor, slurm, kubernetes and
skypilot; headrace.launch.deploy.template_values gives the words their values.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.broker import durable
from headrace.launch.config import run_file
from headrace.launch.deploy.cluster import Cluster
from headrace.launch.deploy.template_values import (
    TemplateValues,
    broker_unit,
    headrace_bin,
    parse_nodes,
)
from headrace.launch.process import runtime

_LAUNCH = Path(__file__).parent
_SLURM_RANKS = 35  # of a job's 40 ports, the first five are others'
_WORD = re.compile(r"\{\{(\w+)\}\}")


def units(
    kind: str,
    run: run_file.Run,
    *,
    nodes: str,
    broker: str | None,
    ranks: int,
    learners: int,
    key_folder: Path | None,
    bin_folder: Path | None,
    out: Path | None,
    cluster: Cluster,
) -> int:
    """Prints the files, or writes them into a folder and names each on standard error."""
    for option, number in (("--ranks", ranks), ("--learners", learners)):
        if number < 1:
            raise run_file.ConfigError(f"{option} {number}: it must be 1 or more")
    run_file.check_ranks(run, ranks * learners)
    values = TemplateValues(
        run,
        nodes=parse_nodes(nodes),
        ranks=ranks,
        learners=learners,
        kind=kind,
        broker=broker,
        keys=key_folder,
        bin=(bin_folder or headrace_bin()).absolute(),
        cluster=cluster,
    )
    files = KINDS[kind](values)
    if out is None:
        for name, text in files.items():
            print(f"# ---- {name}\n{text}")  # noqa: T201
    else:
        _write(files, out)
    return runtime.OK


def fill_template(template: str, words: Mapping[str, object]) -> str:
    """Fills each {{word}} of a template; a word without a value is a bug of ours, and a
    KeyError."""
    return _WORD.sub(lambda found: str(words[found[1]]), (_LAUNCH / template).read_text())


def _write(files: Mapping[str, str], out: Path) -> None:
    for name, text in files.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            durable.write(path, text)
        except OSError as error:
            raise run_file.ConfigError(
                f"--out {out}: {path} cannot be written ({error.strerror}); choose another folder"
            ) from error
        print(f"made  {path}", file=sys.stderr)  # noqa: T201


def _systemd(values: TemplateValues) -> dict[str, str]:
    words = values.words()
    words["hardening"] = fill_template("systemd/hardening.inc", words).rstrip()
    names = sorted(path.name for path in (_LAUNCH / "systemd").iterdir() if path.suffix != ".inc")
    files = {name: fill_template(f"systemd/{name}", words) for name in names}
    for shard in range(1, len(values.brokers)):
        own = words | values.words(shard=shard)
        files[broker_unit(shard)] = fill_template(f"systemd/{broker_unit(0)}", own)
    return files | _run_file(values)


def _supervisor(values: TemplateValues) -> dict[str, str]:
    """Fills a file for each machine, and creates the log folders, which supervisord needs at its
    start."""

    def machine(template: str, name: str, number: int = 0, shard: int = 0) -> str:
        words = values.words(machine=name, number=number, shard=shard)
        words["supervisord"] = fill_template("supervisor/supervisord.inc", words).rstrip()
        words["broker_program"] = fill_template("supervisor/broker.inc", words).rstrip()
        return fill_template(f"supervisor/{template}", words)

    files = {"head.conf": machine("head.conf", "head")}
    for shard in range(1, len(values.brokers)):
        files[f"broker{shard}.conf"] = machine("broker.conf", f"broker{shard}", shard=shard)
    for number in range(2, values.learners + 1):
        files[f"learner{number}.conf"] = machine("learner.conf", f"learner{number}")
    for number, name in enumerate(values.nodes):
        files[f"{name}.conf"] = machine("node.conf", name, number)
    return files | _run_file(values) | {"logs/.keep": "", "runs/.keep": ""}


def _slurm(values: TemplateValues) -> dict[str, str]:
    if values.ranks > _SLURM_RANKS:
        raise run_file.ConfigError(
            f"--ranks {values.ranks}: a job has ports for {_SLURM_RANKS} on a node;"
            " use more --learners"
        )
    names = ("learner.sbatch", "samplers.sbatch")
    return {name: fill_template(f"slurm/{name}", values.words()) for name in names} | _run_file(
        values
    )


def _kubernetes(values: TemplateValues) -> dict[str, str]:
    folder = _LAUNCH / "kubernetes"
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml"))
    return {name: fill_template(f"kubernetes/{name}", values.words()) for name in names}


def _skypilot(values: TemplateValues) -> dict[str, str]:
    if values.learners != 1:
        raise run_file.ConfigError(
            f"--learners {values.learners}: a SkyPilot task has one learner machine; see --ranks"
        )
    name = "headrace.sky.yaml"
    return {name: fill_template(f"skypilot/{name}", values.words())} | _run_file(values)


def _run_file(values: TemplateValues) -> dict[str, str]:
    """Returns the run with every default spelt out, so that all machines run the same in any
    release."""
    return {f"{values.run.run.name}.toml": run_file.effective(values.run)}


KINDS: dict[str, Callable[[TemplateValues], dict[str, str]]] = {
    "systemd": _systemd,
    "supervisor": _supervisor,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}
