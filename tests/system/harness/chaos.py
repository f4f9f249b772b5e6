"""Real roles under faults: started, killed, stopped and started again as a supervisor would."""

import functools
import re
import signal
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests import ports
from tests.system.conftest import Place, Process, until
from tests.system.harness.tally import Key, tally

# Small and quick: versions every few milliseconds, silence noticed within a second and a half.
RUN = """
[run]
name = "chaos"

[env]
id = "CartPole-v1"

[unroll]
length = 8
envs = 4

[model]
hidden = [16]
normalise_obs = false
normalise_returns = false

[algorithm]
trace = 1.0
normalise_advantages = false

[pacing]
batch_unrolls = 4
max_lag = 3

[broker]
beat_s = 0.2
lease_s = 1.5

[checkpoint]
every_s = 0.5

[actor]
groups = 2
drain_s = 5.0
"""
BEAT_S, LEASE_S = 0.2, 1.5
STREAMS = 2  # of one sampler
BATCH = 4
# Most unrolls that may lie between a sampler and an optimiser step: (max_lag + 1) * batch_unrolls.
IN_FLIGHT = 16
# Credits of a stream (broker/ledger/pacing.py): what a sampler may have under way in each.
WINDOW = 4


class Role:
    """One process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.pid = process.pid
        self.killed = False  # by us
        self._process = process

    def text(self) -> str:
        return self._process.text()

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.popen.poll()

    def signal(self, number: int) -> None:
        self._process.signal(number)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)

    def ends(self, *, timeout_s: float = 30.0) -> int:
        return self._process.ends(timeout_s=timeout_s)

    def term(self, *, timeout_s: float = 30.0) -> float:
        """Asks it to end; returns the seconds that it took."""
        self.signal(signal.SIGTERM)
        return self.leaves(timeout_s=timeout_s)

    def leaves(self, *, timeout_s: float = 30.0) -> float:
        """Waits for its clean end; returns the seconds that it took from now on."""
        began = time.monotonic()
        assert self.ends(timeout_s=timeout_s) == 0, f"{self.name}: {self.status}\n{self.text()}"
        return time.monotonic() - began

    def says(self, words: str, *, timeout_s: float = 30.0) -> None:
        until(lambda: words in self.text(), f"{words!r} of {self.name}", timeout_s=timeout_s)

    def metrics(self) -> dict[str, float]:
        """Every sample of its /metrics, by name and labels as they are written there."""
        port = until(lambda: re.search(r"metrics at port (\d+)", self.text()), "its metrics")[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def journal(self, folder: Path) -> str:
        """The name of the journal that it writes, over all its files; "" = none yet."""
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                target = entry.readlink()
            except OSError:  # closed meanwhile
                continue
            if target.parent == folder.resolve():
                return target.name.partition(".")[0]
        return ""


class System:
    """A broker, a learner and samplers, each by its name; every process that ever was."""

    def __init__(
        self,
        place: Place,
        address: str,
        *,
        samplers: int,
        learners: int = 1,
        run: str = RUN,
        allow: tuple[str, ...] = (),
    ) -> None:
        self.place = place
        self.address = address
        place.run = place.toml("run.toml", run)
        self.samplers = [f"actor-{at}" for at in range(samplers)]
        self.names = ["broker", *(["learner"] if learners else []), *self.samplers]
        self.roles: dict[str, Role] = {}  # the living one of each name
        self.all: list[Role] = []
        self.extra: tuple[str, ...] = ()  # further words for the learner
        self.allow = allow  # modules of ours that samplers may import
        for name in self.names:
            self.start(name)
        if learners:
            place.trains(20)

    def words(self, name: str) -> list[str]:
        out, ledger = str(self.place.out), str(self.place.ledger)
        port = ["--metrics-port", "0"]
        match name.split("-"):
            case ["broker"]:
                return ["broker", "--run", self.place.run, "--bind", self.address, *port]
            case ["learner"] | ["rank", _]:
                return [
                    "learner",
                    "--run",
                    self.place.run,
                    "--broker",
                    self.address,
                    "--out",
                    out,
                    "--ledger",
                    ledger,
                    "--resume",
                    *port,
                    *self.extra,
                ]
            case [_, number]:
                return [
                    "actor",
                    "--broker",
                    self.address,
                    "--ledger",
                    ledger,
                    "--name",
                    name,
                    "--seed",
                    str(1000 * int(number)),
                    *port,
                    *(word for module in self.allow for word in ("--allow", module)),
                ]
        raise ValueError(name)

    def start(self, name: str, *, env: Mapping[str, str] | None = None) -> Role:
        role = self.roles[name] = Role(name, self.place.headrace(*self.words(name), env=env))
        self.all.append(role)
        return role

    def kill(self, *names: str) -> None:
        """kill -9 of all of them, and another of each at once."""
        for name in names:
            self.roles[name].kill()
        for name in names:
            self.roles[name].ends()
            self.start(name)

    def survivors(self) -> set[str]:
        """Journals of the samplers that live."""
        roles, folder = [self.roles[name] for name in self.samplers], self.place.ledger
        for role in roles:
            until(functools.partial(role.journal, folder), f"{role.name}'s journal")
        return {role.journal(folder) for role in roles}

    def unsettled(self, *, timeout_s: float = 20.0) -> set[Key]:
        """What living samplers have made so far, and nobody acknowledges while the run goes on.

        To be asked before they leave: then they give up what is open, and it is no loss by name.
        """
        mine = self.survivors()
        made = {key for key, of in tally(self.place.ledger).generated.items() if of in mine}
        deadline = time.monotonic() + timeout_s
        while (missing := made - tally(self.place.ledger).acked.keys()) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return missing

    def finish(self) -> None:
        """Samplers first: they stay until what they sent is acknowledged, all but the rest that is
        no batch. Each is asked once: the second time it leaves at once, and gives up the rest."""
        learners = [name for name in self.roles if name not in [*self.samplers, "broker"]]
        for together in (self.samplers, learners, ["broker"]):
            for name in together:
                self.roles[name].signal(signal.SIGTERM)
            for name in together:
                self.roles[name].leaves()
        self.ends_are_understood()
        assert not self.place.alive()

    def ends_are_understood(self) -> None:
        """Killed by us, or a clean end on request: no process may end for a reason of its own."""
        for role in self.all:
            said = role.text()
            assert role.status == (-signal.SIGKILL if role.killed else 0), f"{role.name}:\n{said}"
            assert "Traceback" not in said, said


def group(system: System, world: int) -> list[Role]:
    """So many ranks of one learner, as torchrun would start them."""
    port = ports.free()
    ours = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        system.start(f"rank-{rank}", env={**ours, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a script."""

    at: float  # seconds after the beginning
    names: tuple[str, ...]  # who is hit


def script(random: Random, samplers: list[str], seconds: float) -> list[Fault]:
    """Every 0.5 to 2 s somebody is hit, each role as often as the others; one time in four there
    are two at the same moment. The last sampler is spared: it must never lose anything."""
    faults, at = [], random.uniform(0.5, 2.0)
    while at < seconds:
        names = ["broker", "learner", random.choice(samplers[:-1])]
        faults.append(Fault(at, tuple(random.sample(names, 1 + (random.random() < 0.25)))))
        at += random.uniform(0.5, 2.0)
    return faults
