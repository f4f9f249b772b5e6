"""docs/deploy/systemd.md, "Without systemd", word for word on one machine: two learner ranks, two
nodes, an evaluator. What is killed comes back, what is stopped drains, nobody is left behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.journal import audit
from tests import ports
from tests.needs import missing
from tests.system.conftest import RUN, Place, Process, until
from tests.trainings import trained

GUIDE = Path(__file__).parents[3] / "docs" / "deploy" / "systemd.md"
LONG_S = 90.0  # a dozen processes that import torch
HEAD = ["broker", "evaluator", "learner"]


def blocks(kind: str) -> list[str]:
    """The guide's code blocks of a kind."""
    return re.findall(rf"^```\w+ {kind}\n(.*?)^```", GUIDE.read_text(), re.M | re.S)


class Rack:
    """The guide on this machine: its addresses are loopback, its run is a small one."""

    def __init__(self, place: Place, address: str) -> None:
        self.place = place
        self.address = address
        self.folder = place.folder
        run = RUN.replace('name = "small"', 'name = "cartpole"')
        place.toml("small.toml", run + "\n[evaluate]\nepisodes = 2\nevery_s = 1.0\n")
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name, text in (
            ("headrace", f'#!/bin/bash\nexec {sys.executable} -m headrace.launch.cli "$@"\n'),
            ("python", f'#!/bin/bash\nexec {sys.executable} "$@"\n'),
        ):
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        self.metrics = ports.free()
        self.supervisors: dict[str, Process] = {}
        self.blocks = iter(blocks("walk"))

    def here(self, text: str) -> str:
        """As it must be said on this machine."""
        text = text.replace("tcp://10.0.0.1:5755", self.address)
        text = text.replace("--run cartpole", "--run small.toml --bin bin")
        return text.replace("10.0.0.1:9100", f"127.0.0.1:{self.metrics}")

    def line(self, line: str) -> str:
        """One line of the guide; what it says. A supervisord is kept in the foreground."""
        if line.startswith("supervisord"):
            name = re.sub(r".*/(\w+)\.conf.*", r"\1", line)
            started = self.start(line.replace("supervisord", "supervisord -n"))
            started.says("supervisord started with pid", timeout_s=LONG_S)
            self.supervisors[name] = started
            return ""
        done = self.start(self.here(line))
        assert done.ends(timeout_s=LONG_S) in (0, 3), f"{line}\n{done.text()}"  # 3: not yet running
        return done.text()

    def start(self, line: str) -> Process:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        replace = "import os, sys; os.execvp('bash', ['bash', '-c', 'exec ' + sys.argv[1]])"
        if "*" in line:
            replace = replace.replace("'exec ' + ", "")
        return self.place.python("-c", replace, line, env={"PATH": path})

    def walk(self) -> list[str]:
        """The next block, line by line."""
        return [self.line(line) for line in next(self.blocks).splitlines()]

    def ports(self) -> None:
        """Ports that are surely free: other tests run here too."""
        for path in (self.folder / "rack").glob("*.conf"):
            text = path.read_text().replace("--metrics-port 9100", f"--metrics-port {self.metrics}")
            path.write_text(re.sub(r"--metrics-port 91\d\d", "--metrics-port 0", text))

    def runs(self, machine: str, program: str, *, times: int = 1) -> None:
        """Waits until its supervisor has seen it run so often: for some seconds without an end."""
        log, line = self.folder / f"rack/{machine}.log", f"success: {program} entered RUNNING"
        until(lambda: log.read_text().count(line) >= times, f"{program} runs", timeout_s=LONG_S)

    def pid(self, machine: str, program: str) -> int:
        return int(self.line(f"supervisorctl -c rack/{machine}.conf pid {program}"))

    def trains(self, more: int = 20) -> None:
        ledger = self.folder / "rack/runs/cartpole/ledger"
        goal = trained(ledger) + more
        until(lambda: trained(ledger) >= goal, f"{goal} trained unrolls", timeout_s=LONG_S)

    def children(self, pid: int) -> set[int]:
        """All that descend from it."""
        found = {pid}
        for _ in range(4):
            for other in self.place.alive():
                try:
                    stat = Path(f"/proc/{other}/stat").read_text()
                except OSError:
                    continue
                if int(stat.rpartition(")")[2].split()[1]) in found:
                    found.add(other)
        return found - {pid}

    def are_gone(self, pids: set[int], what: str) -> None:
        until(lambda: not pids & self.place.alive().keys(), what, timeout_s=LONG_S)


@pytest.fixture
def rack(place: Place, tcp: str) -> Iterator[Rack]:
    for program in ("supervisord", "supervisorctl"):
        if shutil.which(program) is None:
            missing(f"{program} is not installed: apt-get install supervisor")
    rack = Rack(place, tcp)
    try:
        yield rack
    finally:
        for supervisor in rack.supervisors.values():
            if supervisor.popen.poll() is None:
                supervisor.signal(signal.SIGTERM)
        for supervisor in rack.supervisors.values():
            supervisor.popen.wait(LONG_S)


def test_the_guide_walked_through(rack: Rack) -> None:
    rack.walk()  # keys and files
    rack.ports()
    rack.walk()  # three supervisors
    for machine, program in (*(("head", role) for role in HEAD), ("node1", "node")):
        rack.runs(machine, program)
    rack.trains()
    head, node = rack.walk()  # their status
    assert re.findall(r"^(\w+) +RUNNING", head, re.M) == HEAD
    assert re.findall(r"^(\w+) +RUNNING", node, re.M) == ["node"]
    scores = rack.folder / "rack/runs/cartpole/evaluations.jsonl"
    until(scores.exists, "an evaluation", timeout_s=LONG_S)

    # What is killed is started again, and training goes on.
    before = rack.pid("head", "broker")
    os.kill(before, signal.SIGKILL)
    rack.runs("head", "broker", times=2)
    assert rack.pid("head", "broker") != before
    rack.trains()

    # A supervisor that is killed leaves nobody behind.
    victim = rack.supervisors["node2"]
    orphans = rack.children(victim.pid)
    assert orphans
    victim.kill()
    rack.are_gone(orphans, "no sampler is an orphan")
    rack.trains()

    # Stopped in order: they drain and end by themselves, in the time that they are given.
    rack.walk()
    for machine, programs in (("node1", ["node"]), ("head", ["evaluator", "learner", "broker"])):
        log = (rack.folder / f"rack/{machine}.log").read_text()
        for program in programs:
            assert re.search(rf"stopped: {program} \((exit status|terminated by SIGTERM)", log), log
    for machine in ("head", "node1"):
        assert rack.supervisors[machine].term() == 0
    last = rack.walk()[-1]  # every unroll is accounted for: status 0, or line() had failed
    assert "trained" in last
    assert not rack.place.alive()


def test_a_killed_supervisor_takes_broker_and_both_ranks_along(rack: Rack) -> None:
    rack.walk()
    rack.ports()
    rack.line("supervisord -c rack/head.conf")
    supervisor = rack.supervisors["head"]
    ledger = rack.folder / "rack/runs/cartpole/ledger"
    until(lambda: len(list(ledger.glob("learner-*"))) >= 2, "two ranks", timeout_s=LONG_S)
    family = rack.children(supervisor.pid)
    assert len(family) == 5  # broker, evaluator, torchrun and its ranks

    torchrun = rack.pid("head", "learner")
    rank_pids = rack.children(torchrun)
    assert len(rank_pids) == 2
    os.kill(torchrun, signal.SIGKILL)
    rack.are_gone(rank_pids, "ranks do not outlive their torchrun")

    family = rack.children(supervisor.pid)
    supervisor.kill()
    rack.are_gone(family, "broker, learner and evaluator are gone")


def test_a_second_broker_has_a_supervisor_of_its_own(rack: Rack) -> None:
    rack.address += f",tcp://127.0.0.1:{ports.free(2)}"
    run = (rack.folder / "small.toml").read_text().replace("unrolls = 2", "unrolls = 4")
    rack.place.toml("small.toml", run.replace("[broker]\n", "[broker]\nshards = 2\n"))
    rack.walk()
    rack.ports()
    for machine in ("head", "broker1", "node1", "node2"):
        rack.line(f"supervisord -c rack/{machine}.conf")
    rack.runs("broker1", "broker")
    ledger = rack.folder / "rack/runs/cartpole/ledger"
    until(lambda: len(list(ledger.glob("broker-*"))) == 2, "two brokers", timeout_s=LONG_S)
    rack.trains()
    os.kill(rack.pid("broker1", "broker"), signal.SIGKILL)
    rack.runs("broker1", "broker", times=2)
    rack.trains()
    for name, machine in (("node", "node1"), ("node", "node2"), ("learner", "head")):
        rack.line(f"supervisorctl -c rack/{machine}.conf stop {name}")
    account = audit.read(ledger)
    assert (account.untrue, account.contradictions, account.unfounded) == (0, 0, 0)


def test_prometheus_reads_the_guides_configuration(rack: Rack) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        missing("prometheus is not installed: apt-get install prometheus")
    (block,) = blocks("prometheus")
    file = rack.folder / "prometheus.yml"
    file.write_text(rack.here(block).replace("15s", "1s"))
    subprocess.run(["promtool", "check", "config", str(file)], check=True, capture_output=True)
    broker = rack.place.headrace(
        "broker", "--run", "small.toml", "--bind", rack.address, "--metrics-port", str(rack.metrics)
    )
    port = ports.free()
    server = rack.start(
        f"{prometheus} --config.file={file} --storage.tsdb.path={rack.folder}/tsdb"
        f" --web.listen-address=127.0.0.1:{port}"
    )
    query = urllib.parse.quote('up{job="headrace", role="broker"} == 1')

    def answered() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}") as a:
                return bool(json.load(a)["data"]["result"])
        except OSError:
            return False

    until(answered, "Prometheus has the broker's numbers")
    assert server.term() == 0
    assert broker.term() == 0
