"""A benchmark's processes: a real broker, simulated samplers and a simulated learner."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.broker.journal import audit
from headrace.broker.transport import several
from headrace.launch import keygen
from headrace.launch.bench.simulated import processes
from headrace.launch.config import run_file
from headrace.launch.process import forking, logs

_PATIENCE_S = 300.0  # far above what anything here takes


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """Holds the resources that processes used up to one moment."""

    cpu_s: float
    rss_kb: int
    pss_kb: int
    descriptors: int

    @classmethod
    def of(cls, *pids: int) -> "ProcessLoad":
        each = [cls._of_one(pid) for pid in pids]
        return cls(
            sum(one.cpu_s for one in each),
            sum(one.rss_kb for one in each),
            sum(one.pss_kb for one in each),
            sum(one.descriptors for one in each),
        )

    @classmethod
    def _of_one(cls, pid: int) -> "ProcessLoad":
        place = Path(f"/proc/{pid}")
        words = (place / "stat").read_text().rpartition(")")[2].split()
        lines = (place / "smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
        return cls(
            (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"),
            sizes["Rss"],
            sizes["Pss"],
            len(list((place / "fd").iterdir())),
        )


class SimulatedCluster:
    """Runs the processes in one temporary folder; closing it kills them and deletes the folder."""

    def __init__(self, *, tcp: bool = False, keys: bool = False, **sections: Any) -> None:
        """Takes the sections of the run; with keys all connections are encrypted."""
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-")
        self.folder = Path(self._temporary.name)
        self.run = str(self.folder / "simulated.toml")
        self._keys = self.folder / "keys" if keys else None
        if self._keys is not None:
            keygen.generate(self._keys, {})
            sections["security"] = {"curve": True, "keys": str(self._keys)}
        Path(self.run).write_text(run_file.text(sections, head="# A simulated run."))
        self.ledger = str(self.folder / "ledger")
        self._bind = "tcp://127.0.0.1:0" if tcp else f"ipc://{self.folder}/b"
        self._addresses: dict[int, str] = {}  # where each broker listens
        self._started: list[subprocess.Popen[bytes]] = []
        self._reports: dict[int, Path] = {}  # by pid

    @property
    def address(self) -> str:
        """Returns where the brokers listen, with commas between."""
        return ",".join(self._addresses.values())

    def broker(self, *options: str, shard: int = 0) -> int:
        """Starts a broker and returns its pid once it listens; may be called again when it has
        ended."""
        said = self.log_of(shard)
        before = said.stat().st_size if said.exists() else 0
        bind = several.of_shard(self._bind, shard)
        command = ["-m", "headrace.launch.cli", "broker", "--run", self.run, "--bind", bind]
        pid = self._start([*command, *options], said)
        found = self.until(
            lambda: re.search(r"run \S+ at ([^\s,]+)", said.read_text()[before:]),
            "the broker listens",
        )
        self._addresses[shard] = found[1]
        return pid

    def log_of(self, shard: int) -> Path:
        """Returns the file of what a broker says."""
        return self.folder / f"broker{shard or ''}.log"

    def key(self, role: str) -> str:
        """Returns the role's key file; "" = the broker works without keys."""
        return str(self._keys / f"{role}.key") if self._keys is not None else ""

    def start(self, role: processes.Role) -> int:
        pid = self._start(processes.arguments(role), self.folder / "simulated.log")
        self._reports[pid] = Path(role.report)
        return pid

    def report(self, pid: int) -> dict[str, Any]:
        """Returns the process's latest report, and waits for the first one."""
        path = self._reports[pid]
        found: dict[str, Any] = self.until(
            lambda: processes.read(path), f"a report of process {pid}"
        )
        return found

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits until the condition is true; returns its value."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_PATIENCE_S:.0f} s: {what}")
            ended = [popen.pid for popen in self._started if popen.poll() is not None]
            if ended:
                raise RuntimeError(f"processes {ended} ended before this was so: {what}")
            time.sleep(0.01)
        return found

    def end(self, pids: Sequence[int], by: signal.Signals = signal.SIGTERM) -> None:
        """Signals all these processes, then waits for all."""
        ending = [popen for popen in self._started if popen.pid in pids]
        for popen in ending:
            popen.send_signal(by)
        for popen in ending:
            popen.wait(_PATIENCE_S)
            self._started.remove(popen)

    def account(self) -> audit.Account:
        return audit.read(Path(self.ledger))

    def _start(self, command: Sequence[str], said: Path) -> int:
        parent = os.getpid()
        with said.open("ab") as sink:
            popen = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, logs.VARIABLE: logs.HUMAN},
                preexec_fn=lambda: forking.become_child(parent),
            )
        self._started.append(popen)
        return popen.pid

    def __enter__(self) -> "SimulatedCluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for popen in self._started:
            popen.kill()
            popen.wait()
        if kind is not None:
            for said in self.folder.glob("*.log"):
                sys.stderr.write(said.read_text()[-2000:])
        self._temporary.cleanup()
