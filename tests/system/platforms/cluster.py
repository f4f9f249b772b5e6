"""A live Slurm of three nodes and a head on one machine, in namespaces of their own: the end of the
first process takes all of them along. Needs root and Debian's Slurm."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import missing
from tests.system.conftest import until
from tests.system.platforms.inside import NAMESPACES, first_child, need_namespaces, run_inside

NODES = ("n1", "n2", "n3")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip")
# Nodes that have more cores than this machine: jobs of two runs shall fit on one. A requeued job
# waits until its credential has expired.
_CONFIG = """
ClusterName=one
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
AuthInfo=cred_expire=8
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-3] NodeAddr=10.77.0.1[1-3] CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n[1-3] Default=YES PriorityTier=1 PreemptMode=OFF
PartitionName=cheap Nodes=n[1-3] PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE
PartitionName=urgent Nodes=n[1-3] PriorityTier=10 PreemptMode=OFF
"""
# $1: the folder. /run and /dev/shm are the cluster's own, hosts files each node's.
_HEAD = """
cd "$1"
export SLURM_CONF=$1/slurm.conf
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /dev/shm
hostname head
mount --bind hosts-head /etc/hosts
mkdir -m 755 /run/munge
(umask 377; head -c 1024 /dev/urandom >/run/munge.key)
munged --foreground --key-file=/run/munge.key --log-file=/run/munge.log --pid-file=/run/munge.pid \
    --seed-file=/run/munge.seed &
ip link set lo up
ip link add net0 type bridge
ip address add 10.77.0.1/24 dev net0
ip link set net0 up
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.05; done
slurmctld -D &
for number in 1 2 3; do
    unshare --net --uts --mount bash -euc "$2" - "$number" &
done
wait
"""
_NODE = """
hostname "n$1"
mount --bind "hosts-n$1" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
ip link add eth0 type veth peer name "n$1" netns 1
nsenter --target 1 --net ip link set "n$1" master net0 up
ip address add "10.77.0.1$1/24" dev eth0
ip link set eth0 up
mkdir "spool-n$1"
exec slurmd -D
"""


class Cluster:
    """One whose nodes are idle. Jobs are root's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(_CONFIG.format(folder=folder))
        for name in ("head", *NODES):
            self.hosts(name)
        path = folder / "log.txt"
        with path.open("wb") as log:
            # On two cores: a node starts as many samplers.
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
            boot = ["bash", "-euc", _HEAD, "-", str(folder), _NODE]
            self._popen = subprocess.Popen(
                ["taskset", "--cpu-list", cores, *NAMESPACES, "--mount-proc", *boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._first = until(
                lambda: first_child(self._popen, path), "the cluster's first process"
            )
            until(lambda: self.run("sinfo", "-ho", "%T %D") == "idle 3", f"nodes:\n{self.text()}")
        except BaseException:
            self.off()
            raise

    def text(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")

    def hosts(self, name: str, *first: str) -> None:
        """Writes the hosts file of a machine, which stays the same file: it is mounted."""
        lines = ["127.0.0.1 localhost", *first, "10.77.0.1 head"]
        lines += [f"10.77.0.1{at} n{at}" for at in (1, 2, 3)]
        (self.folder / f"hosts-{name}").write_text("\n".join(lines) + "\n")

    def run(self, *words: str, there: Path | None = None) -> str:
        """What a command prints on the head, whatever its status."""
        conf, path = self.folder / "slurm.conf", f"{self.folder}/bin:{os.environ['PATH']}"
        env = [f"--chdir={there or self.folder}", f"SLURM_CONF={conf}"]
        env += [f"PATH={path}", "TMPDIR=/run", "HOME=/run"]
        return run_inside(self._first, env, words)

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job; it is asked some times a second only."""
        time.sleep(0.2)
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def off(self) -> None:
        """Ends all that runs there."""
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() or absent:
        packages = "slurmctld slurmd slurm-client munge iproute2"
        missing(f"a Slurm of its own needs root and, on Debian, apt-get install {packages}")
    need_namespaces("a Slurm")
    (tmp_path / "bin").mkdir()
    for name, words in (("headrace", "-m headrace.launch.cli"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.off()
