"""docs/deploy/ray.md on a live Ray cluster of simulated machines, two of which are lost."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
from pathlib import Path

from tests.needs import missing
from tests.system.conftest import Place, Process, until
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

    def commands(self, first: str = "") -> list[int]:
        """The commands that agents run, by their first word: their processes."""
        module = f"headrace.launch.on_ray.agent \\d+ headrace.launch.\\w+ {first}"
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
        for each in sorted(gone):
            try:
                os.kill(each, signal.SIGSTOP)  # nobody shall say goodbye
            except ProcessLookupError:  # it has ended by itself meanwhile
                gone.discard(each)
        memory = [folder for each in gone for folder in held_memory(each)]
        for each in gone:
            with contextlib.suppress(ProcessLookupError):  # its parent has taken it along
                os.kill(each, signal.SIGKILL)
        for folder in memory:
            shutil.rmtree(folder, ignore_errors=True)

    def is_raylet(self, pid: int) -> bool:
        return self.place.alive()[pid].split()[0].endswith("/raylet")

    def gets_a_machine(self, run: Process, role: str) -> None:
        """Waits until one more of the role has a place."""
        placed = re.findall(rf"({role}-\d+) is on", run.text())
        self.ray.signal(signal.SIGUSR1)
        run.says(rf"(?!{'|'.join(placed)} ){role}-\d+ is on", timeout_s=PATIENCE_S)


def held_memory(pid: int) -> list[Path]:
    """The folders in shared memory that a process holds, which is lost with its machine."""
    held = (path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir())
    return [path for path in held if path.name.startswith("headrace-node-") and path.is_dir()]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def test_a_run_outlives_machines_and_leaves_the_cluster_as_it_was(place: Place) -> None:
    """The first machine, where the driver is, has no CPUs: whatever runs is on others."""
    cluster = Cluster(place, 0, 1, 1, 2)
    refused = cluster.start("--learners", "1", "--ranks", "2", "--wait-s", "0")
    assert refused.ends(timeout_s=PATIENCE_S) == 2, refused.text()
    (line,) = [line for line in refused.lines() if "no place" in line]
    assert "they need 2 + 2 CPUs, and of" in line
    run = cluster.start("--set", f"stop.steps={FOR_EVER}")
    run.says("learner learner-0 joins", timeout_s=PATIENCE_S)
    place.trains()
    (first, *_) = until(lambda: cluster.commands("node"), "a node")
    cluster.lose_a_machine_with(first)
    lost = run.says(r"WARNING (actor-\d+) .*; another in")[1]
    cluster.gets_a_machine(run, "actor")
    assert f"{lost} is on" in run.text()
    place.trains()
    (learner,) = cluster.commands("--nnodes")
    cluster.lose_a_machine_with(learner)
    run.says(r"all again in[\s\S]*learner-\d+ is on[\s\S]*continues from", timeout_s=PATIENCE_S)
    run.says(r"all again in[\s\S]*learner learner-0 joins", timeout_s=PATIENCE_S)
    place.trains()
    run.signal(signal.SIGINT)
    assert run.ends(timeout_s=PATIENCE_S) == 3, run.text()
    assert not cluster.commands()
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)
