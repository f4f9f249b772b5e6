"""docs/deploy/ray.md on a live Ray cluster of simulated machines, one of which is lost."""

import importlib.util
import os
import re
import signal
from pathlib import Path

from tests.needs import missing
from tests.system.conftest import Place, Process, until
from tests.system.harness.figures import LONG
from tests.system.platforms import ray_cluster

# On a busy machine: a dozen interpreters start, half of them with torch.
PATIENCE_S = 240.0
FOR_EVER = 1_000_000_000


class Cluster:
    """Ray's processes, and the runs on them."""

    def __init__(self, place: Place, *cpus: int) -> None:
        if importlib.util.find_spec("ray") is None:
            missing("ray is not installed: pip install 'headrace[ray]'")
        self.place = place
        script = str(Path(ray_cluster.__file__))
        self.ray = place.python(script, *map(str, cpus))
        self.address = self.ray.says(r"cluster at (\S+)", timeout_s=PATIENCE_S)[1]

    def start(self, *more: str) -> Process:
        words = ("ray", self.place.run, "--address", self.address, "--out", str(self.place.out))
        return self.place.headrace(*words, *more, env=ray_cluster.ENV, cold=True)

    def commands(self, role: str = "") -> list[int]:
        """The commands that agents run: their processes."""
        module = f"headrace.launch.on_ray.agent \\d+ headrace.launch.\\w+ {role}"
        return [pid for pid, line in self.place.alive().items() if re.search(module, line)]

    def lose_a_machine_with(self, pid: int) -> None:
        """All its processes at once, as when its power fails."""
        parents = {each: parent(each) for each in self.place.alive()}
        raylet = pid
        while not self.is_raylet(raylet):
            raylet = parents[raylet]
        gone = {raylet}
        while more := {each for each in parents if parents[each] in gone} - gone:
            gone |= more
        for each in gone:
            os.kill(each, signal.SIGSTOP)  # nobody shall say goodbye
        for each in gone:
            os.kill(each, signal.SIGKILL)

    def is_raylet(self, pid: int) -> bool:
        return self.place.alive()[pid].split()[0].endswith("/raylet")

    def is_free(self) -> None:
        until(lambda: not self.commands(), f"commands: {self.place.alive()}")


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def is_exact(place: Place) -> None:
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)


def test_a_run_outlives_a_machine_and_leaves_the_cluster_as_it_was(place: Place) -> None:
    cluster = Cluster(place, 2, 1, 1, 1)
    run = cluster.start("--learners", "2" if LONG else "1", "--set", f"stop.steps={FOR_EVER}")
    until(lambda: place.trained() > 20, f"20 trained:\n{run.text()}", timeout_s=PATIENCE_S)
    (first, *_) = until(lambda: cluster.commands("node"), "a node")
    cluster.lose_a_machine_with(first)
    lost = run.says(r"WARNING (actor-\d+) .*; another in")[1]
    placed = set(re.findall(r"(actor-\d+) is on", run.text()))
    assert lost in placed
    cluster.ray.signal(signal.SIGUSR1)
    until(lambda: set(re.findall(r"(actor-\d+) is on", run.text())) - placed, run.text())
    place.trains()
    run.signal(signal.SIGINT)
    assert run.ends(timeout_s=PATIENCE_S) == 3, run.text()
    cluster.is_free()
    is_exact(place)
