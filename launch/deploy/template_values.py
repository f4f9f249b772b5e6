"""The values of the words in the templates of `headrace units`, from a run and its machines."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.release import release
from headrace.broker.security import keys
from headrace.broker.server.memory_guard import PEER_BYTES
from headrace.broker.transport.endpoints import is_loopback
from headrace.launch.config import allowed_code, run_file
from headrace.launch.deploy.broker_address import (
    NODE_PORT,
    RENDEZVOUS_PORT,
    broker_addresses,
    broker_metrics_port,
)
from headrace.launch.deploy.cluster import Cluster, authorised, probes
from headrace.launch.process import descriptors

# Added to the time in which a role notices by itself that it hangs.
_MARGIN_S = 30
# A checkpoint (torchrun gives its ranks no longer), the last weights, the run's files.
_LEARNER_STOP_S = 30 + 5 + 10
# To close environments and worker processes; and for a node after its samplers have ended.
_CLOSE_S, _NODE_S = 10, 5
_MOST_NODES = 10_000
# CPUs of a pod, or besides the ranks of a Slurm node: a guess, unknown on this machine.
_CPUS = 4
_PLAIN = re.compile(r"[\w./+@~-]+")


def parse_nodes(given: str) -> list[str]:
    """Parses --nodes: a number, or names."""
    if given.lstrip("-").isdigit():
        count = int(given)
        if not 1 <= count <= _MOST_NODES:
            raise run_file.ConfigError(f"--nodes {given}: it must be from 1 to {_MOST_NODES}")
        return [f"node{number}" for number in range(1, count + 1)]
    names = [keys.check_name(name) for name in given.split(",")]
    if twice := [name for name in names if names.count(name) > 1]:
        raise run_file.ConfigError(f"--nodes {given}: {twice[0]} is named twice")
    return names


def broker_unit(shard: int) -> str:
    """Returns the name of a broker's unit for systemd."""
    return f"headrace-broker{shard}.service" if shard else "headrace-broker.service"


def headrace_bin() -> Path:
    """Returns the folder that holds `headrace` and `python` on this machine."""
    return Path(sys.executable).parent


@dataclass(slots=True)
class TemplateValues:
    """Computes the values of all template words for one run on given machines."""

    run: run_file.Run
    kind: str
    nodes: Sequence[str]  # of samplers, by name
    ranks: int  # on each learner machine
    learners: int  # machines
    broker: str | None  # its address, or those of several; None = the kind's, or the run's
    keys: Path | None  # the folder on those machines; None = the kind's, or the run's
    bin: Path  # of headrace and python on those machines
    cluster: Cluster  # for Kubernetes
    brokers: Sequence[str] = field(init=False)  # the addresses of all, by shard

    def __post_init__(self) -> None:
        self.brokers = broker_addresses(
            self.kind,
            self.broker,
            self.run.broker,
            nodes=len(self.nodes),
            ranks=self.ranks,
            learners=self.learners,
        )
        if self.kind != "kubernetes" and (given := self.cluster.given()):
            raise run_file.ConfigError(f"{given[0]} is for headrace units kubernetes")
        for option, folder in (("--key-folder", self.keys), ("--bin", self.bin)):
            if folder is not None and not _PLAIN.fullmatch(str(folder)):
                raise run_file.ConfigError(
                    f"{option} {folder}: spaces, quotes, $ and % mean something in these files;"
                    " choose a folder without them"
                )

    def words(self, *, machine: str = "head", number: int = 0, shard: int = 0) -> dict[str, object]:
        """Returns the value of every word, as seen from one machine, with that broker on it."""
        run = self.run
        step_s = run.actor.step_timeout_s
        broker_watchdog = max(30, math.ceil(4 * run.broker.beat_s))
        return {
            "name": run.run.name,
            "machine": machine,
            "broker": ",".join(self.brokers),
            "bind": self.brokers[shard],
            "shard": f" --shard {shard}" if shard else "",
            "broker_metrics": broker_metrics_port(shard),
            "broker_units": " ".join(map(broker_unit, range(len(self.brokers)))),
            "port": self._port(),
            "announce_port": self._port() + 1,
            "bin": self.bin,
            "runs": "/etc/headrace",
            "home": "read-only" if self.bin.is_relative_to("/home") else "yes",
            "metrics_host": "0.0.0.0" if self._reached_remotely() else "127.0.0.1",
            "node_port": 9101
            if self._reached_remotely()
            else NODE_PORT + number,  # all nodes are one machine
            "ranks": self.ranks,
            "learners": self.learners,
            "count": len(self.nodes),
            "nodes_words": f" ({', '.join(self.nodes)})" if len(self.nodes) <= 16 else "",
            "learner_command": self._learner_command(),
            "rendezvous_words": ""
            if self.learners == 1
            else f" They meet at {self._host()}:{RENDEZVOUS_PORT}, the first of them.",
            "cpus": _CPUS,
            "node_memory": 2 * _CPUS,
            "node_cpus": _CPUS + 1,  # the relay, and the node itself
            "learner_cpus": self.ranks + 1,
            # Seconds.
            "beat": f"{run.broker.beat_s:g}",
            "drain": f"{run.actor.drain_s:g}",
            "step_timeout": f"{step_s:g}",
            "rank_timeout": f"{run.learner.rank_timeout_s:g}",
            "broker_watchdog": broker_watchdog,
            "actor_watchdog": self._watchdog_s(step_s),
            "learner_watchdog": self._watchdog_s(run.learner.rank_timeout_s),
            "learner_stop": math.ceil(run.learner.rank_timeout_s) + _LEARNER_STOP_S,
            "actor_stop": math.ceil(run.actor.drain_s) + _CLOSE_S,
            "node_stop": math.ceil(run.actor.drain_s) + _CLOSE_S + _NODE_S,
            "broker_pre_stop": math.ceil(run.actor.drain_s) + _CLOSE_S,
            "broker_grace": math.ceil(run.actor.drain_s) + _CLOSE_S + 15,
            # Descriptors and MiB.
            "peers": run.broker.peers,
            "broker_files": descriptors.of_broker(run.broker.peers),
            "peer_files": descriptors.of_peer(),
            "queue_mb": f"{run.broker.queue_mb:g}",
            "broker_high": self._broker_mb(),
            "broker_max": 2 * self._broker_mb(),
            **self._allow_words(),
            **self._key_words(machine),
            "machines": 1 + len(self.nodes),
            "wheel": f"headrace-{release()}-py3-none-any.whl",
            "accelerators": f"  accelerators: L4:{self.ranks}\n"
            if run.learner.device == "cuda"
            else "",
            "gpus": f"#SBATCH --gpus-per-node={self.ranks}\n"
            if run.learner.device == "cuda"
            else "",
            "broker_watchdog_probes": probes(broker_watchdog),
            "actor_watchdog_probes": probes(self._watchdog_s(step_s)),
            "learner_watchdog_probes": probes(self._watchdog_s(run.learner.rank_timeout_s)),
            "authorised": authorised(self._shown_keys()),
            **self.cluster.words(run, ranks=self.ranks, nodes=len(self.nodes)),
        }

    # ---- where ----------------------------------------------------------------------------------

    def _host(self, shard: int = 0) -> str:
        return self.brokers[shard].partition("://")[2].rpartition(":")[0]

    def _port(self) -> int:
        port = self.brokers[0].rpartition(":")[2]
        return int(port) if port.isdigit() else 5755

    def _uses_keys(self) -> bool:
        """Says whether to use keys: when asked for, or when other machines reach the broker."""
        asked = self.keys is not None or self.run.security.curve
        return asked or self._reached_remotely() or self.kind in ("slurm", "kubernetes")

    def _reached_remotely(self) -> bool:
        """Says whether other machines reach a broker."""
        return any(
            address.startswith("tcp://") and not is_loopback(self._host(shard))
            for shard, address in enumerate(self.brokers)
        )

    def _learner_command(self) -> str:
        run = self._run_file()
        if self.ranks == self.learners == 1:
            return f"{self.bin}/headrace learner --run {run}"
        rendezvous = "--standalone"
        if self.learners > 1:
            rendezvous = (
                f"--nnodes {self.learners} --rdzv-backend c10d --rdzv-id {self.run.run.name}"
                f" --rdzv-endpoint {self._host()}:{RENDEZVOUS_PORT}"
            )
        # torchrun on Python 3.11 takes --run as an option of its own.
        ranks = f"--nproc-per-node {self.ranks} -m headrace.launch.learner {run}"
        return f"{self.bin}/python -m headrace.launch.torchrun {rendezvous} {ranks}"

    def _run_file(self) -> str:
        folder = "%(here)s" if self.kind == "supervisor" else "/etc/headrace"
        return f"{folder}/{self.run.run.name}.toml"

    # ---- numbers --------------------------------------------------------------------------------

    def _watchdog_s(self, seconds: float) -> int:
        """Returns a watchdog's time: longer than the role's own time limit, and than four beats."""
        return math.ceil(max(60, seconds + _MARGIN_S, 4 * self.run.broker.beat_s))

    def _broker_mb(self) -> int:
        """Returns the memory of a broker in MiB; broker/server/memory_guard.py ends it a little
        below."""
        peers = self.run.broker.peers * PEER_BYTES / 2**20
        return math.ceil(self.run.broker.queue_mb + peers + 1024)

    # ---- code -----------------------------------------------------------------------------------

    def _allow_words(self) -> dict[str, object]:
        """Returns the words that allow samplers the code which this run names: its author may name
        it."""
        named = allowed_code.names(self.run)
        for name in named:
            if not re.fullmatch(r"[\w.:-]+", name):
                raise run_file.ConfigError(
                    f"the run names the code {name!r}: only letters, digits, _ . : and - can stand"
                    " in these files"
                )
        return {
            "allow": "".join(f" --allow {name}" for name in named),
            "allow_args": "".join(f"\n            - --allow={name}" for name in named),
        }

    # ---- keys -----------------------------------------------------------------------------------

    def _folder(self) -> Path:
        return self.keys or Path(self.run.security.keys)

    def _shown_keys(self) -> list[str]:
        """Returns the public keys there are; those that keygen makes where there are none yet."""
        shown = sorted(path.name for path in (self._folder() / keys.AUTHORISED).glob("*.pub"))
        return shown or ["actor.pub", "evaluator.pub", "learner.pub"]

    def _key_words(self, machine: str) -> dict[str, object]:
        folder = self._folder()
        if self.kind == "slurm":
            return {"keys": folder}
        folder = folder.absolute()
        if not self._uses_keys():
            roles = ("learner", "actor", "evaluator")
            none = {f"{role}_{word}": "" for role in roles for word in ("key", "credentials")}
            return {"keys": folder, "broker_keys": "", "broker_credentials": "", **none}
        if self.kind == "supervisor":
            own = folder / f"actor-{machine}.key"
            return {
                "keys": folder,
                "broker_keys": f" --set security.curve=true --set security.keys={folder}",
                "learner_key": f" --key {folder}/learner.key",
                "evaluator_key": f" --key {folder}/evaluator.key",
                "actor_key": f" --key {own if own.exists() else folder / 'actor.key'}",
            }
        return {"keys": folder, **_credentials(folder)}


def _credentials(folder: Path) -> dict[str, object]:
    """Returns the words by which systemd hands each service its own key, under any user. The
    folder of authorised keys is bound into the broker's service alone: a key deleted there is
    out at once."""
    words: dict[str, object] = {
        f"{role}_credentials": f"LoadCredential={role}.key:{folder}/{role}.key\n"
        for role in ("broker", "learner", "actor", "evaluator")
    }
    words["broker_credentials"] = (
        f"{words['broker_credentials']}"
        f"BindReadOnlyPaths={folder}/{keys.AUTHORISED}:/run/headrace-keys/{keys.AUTHORISED}\n"
    )
    curve = " --set security.curve=true"
    words["broker_keys"] = f"{curve} --set security.keys=/run/headrace-keys --key %d/broker.key"
    for role in ("actor", "evaluator", "learner"):
        words[f"{role}_key"] = f" --key %d/{role}.key"
    return words
