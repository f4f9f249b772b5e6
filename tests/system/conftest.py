"""Real processes for the system tests: started here, watched here, and gone when a test ends.

Every process of a test carries one word of its own in its environment, which children inherit: so a
test can say "nothing of mine is left" whatever became of the parents.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.journal import audit
from tests import ports, warm
from tests.nest import WORD
from tests.trainings import trained

# Far above what anything here takes on a busy machine; only a hang reaches it.
LONG_S = 60.0
PATIENCE_S = 300.0  # of a gate: only what hangs takes so long

RUN = """
[run]
name = "small"

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
normalise_advantages = true
replay_share = 0.0

[pacing]
batch_unrolls = 2
max_lag = 2

[broker]
beat_s = 0.2
lease_s = 2.0

[checkpoint]
every_s = 0.3

[actor]
count = 2
groups = 2
drain_s = 2.0
"""


def process_names(pids: Iterable[int | str]) -> dict[int, str]:
    """Returns what ps calls these processes, but for those that have just ended."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[int(pid)] = Path(f"/proc/{pid}/comm").read_text().strip()
    return found


def children(pid: int) -> dict[int, str]:
    """Returns what ps calls the children of a process, of its first thread."""
    return process_names(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def until(
    condition: Callable[[], Any],
    what: str,
    *,
    timeout_s: float = PATIENCE_S,
    why: Callable[[], object] = lambda: "",
) -> Any:
    """Returns what the condition gives once it gives something; fails with what `why` adds then."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}{why()}"
        time.sleep(0.02)


_MEMORY = Path("/dev/shm")
_MAKE_NODES = frozenset({"node", "ray"})  # commands


def shared_memory() -> set[str]:
    return {entry.name for entry in _MEMORY.iterdir()} if _MEMORY.is_dir() else set()


def forsaken(name: str) -> bool:
    """No living node holds this folder; one of a test beside us does."""
    try:
        folder = os.open(_MEMORY / name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    return True


class Process:
    """One started command; everything it says goes into one file."""

    def __init__(self, popen: subprocess.Popen[bytes] | warm.Forked, log: Path) -> None:
        self.popen = popen
        self.log = log

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self) -> list[str]:
        return self.text().splitlines()

    def says(self, pattern: str, *, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Waits for a line; fails at once when the process has ended without it."""

        def look() -> re.Match[str] | None:
            ended = self.popen.poll() is not None
            found = re.search(pattern, self.text())
            assert found or not ended, f"ended without {pattern!r}:\n{self.text()}"
            return found

        match: re.Match[str] = until(look, f"{pattern!r} in:\n", timeout_s=timeout_s, why=self.text)
        return match

    def ends(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Its exit status."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout_s:.0f} s:\n{self.text()}") from None

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def term(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ends()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ends()


def env_of_ranks(start: str = "01") -> list[dict[str, str]]:
    """Returns what torchrun would tell two ranks, or one of them."""
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free())}
    return [{**there, "WORLD_SIZE": "2", "RANK": at, "LOCAL_RANK": at} for at in start]


class Place:
    """One test's folder, addresses and processes."""

    def __init__(self, folder: Path, *, cold: bool = False) -> None:
        self.folder = folder
        self.cold = cold  # nothing comes from a warmed parent
        self.out = folder / "out"
        self.ledger = self.out / "ledger"
        self.word = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.run = self.toml("run.toml", RUN)
        self.ipc = f"ipc://{folder}/b"
        self._started: list[Process] = []
        self._shared_memory = shared_memory()
        self._nodes = False  # it has started what makes their folders

    def toml(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def python(
        self, *arguments: str, env: Mapping[str, str] | None = None, namespace: str = ""
    ) -> Process:
        """A Python process in a session of its own. `namespace`: of the network, if not ours."""
        log = self._log()
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        with log.open("wb") as sink:
            popen = subprocess.Popen(
                [*inside, sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
                env=self._env(env),
            )
        return self._watched(popen, log, arguments)

    def headrace(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cold: bool = False,
        namespace: str = "",
    ) -> Process:
        """The same for a `headrace` command, forked from a warmed parent where that is as good."""
        module = "headrace.launch.cli"
        return self.module(module, *arguments, env=env, cold=cold, namespace=namespace)

    def module(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cold: bool = False,
        namespace: str = "",
    ) -> Process:
        """The same for any module."""
        if cold or self.cold or not warm.possible(env or {}):
            return self.python("-m", module, *arguments, env=env, namespace=namespace)
        log = self._log()
        forked = warm.nest_of_the_session().fork(
            module, arguments, folder=self.folder, log=log, env=self._env(env), namespace=namespace
        )
        return self._watched(forked, log, arguments)

    def train(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        # Tests of evaluations name them; beside others no evaluator takes time.
        alone = [] if any("evaluat" in word for word in arguments) else ["--no-evaluate"]
        words = ("train", self.run, "--out", str(self.out), *alone, *arguments)
        return self.headrace(*words, env=env)

    def broker(self, *arguments: str, bind: str = "") -> Process:
        return self.headrace(
            "broker",
            "--run",
            self.run,
            "--bind",
            bind or self.ipc,
            "--ledger",
            str(self.ledger),
            *arguments,
        )

    def learner(
        self, *arguments: str, broker: str = "", env: Mapping[str, str] | None = None
    ) -> Process:
        return self.headrace(
            "learner",
            "--run",
            self.run,
            "--broker",
            broker or self.ipc,
            "--out",
            str(self.out),
            "--ledger",
            str(self.ledger),
            *arguments,
            env=env,
        )

    def two_ranks(self, *arguments: str, broker: str = "", start: str = "01") -> list[Process]:
        """Of a learner, as torchrun would start them, but forked like everybody; or one of them."""
        return [self.learner(*arguments, broker=broker, env=env) for env in env_of_ranks(start)]

    def actor(
        self, *arguments: str, broker: str = "", env: Mapping[str, str] | None = None
    ) -> Process:
        return self.headrace(
            "actor",
            "--broker",
            broker or self.ipc,
            "--ledger",
            str(self.ledger),
            "--seed",
            "3",
            *arguments,
            env=env,
        )

    def _env(self, more: Mapping[str, str] | None) -> dict[str, str]:
        ours = {WORD: self.word, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **ours, **(more or {})}

    def _log(self) -> Path:
        return self.folder / f"log-{len(self._started)}.txt"

    def _watched(
        self, popen: subprocess.Popen[bytes] | warm.Forked, log: Path, arguments: Sequence[str]
    ) -> Process:
        process = Process(popen, log)
        self._nodes |= not _MAKE_NODES.isdisjoint(arguments)
        self._started.append(process)
        return process

    # ---- what it left ---------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def history(self) -> list[dict[str, Any]]:
        path = self.out / "history.jsonl"
        if not path.exists():
            return []
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def account(self) -> audit.Account:
        return audit.read(self.ledger)

    def trained(self) -> int:
        """Unrolls in the learners' journals."""
        return trained(self.ledger)

    def trains(self, more: int = 20) -> None:
        """Waits until so many further unrolls were trained."""
        before = self.trained()
        until(
            lambda: self.trained() >= before + more,
            f"{more} trained unrolls more than {before}",
            why=lambda: f", have {self.trained()}{self._ended()}",
        )

    def _ended(self) -> str:
        """Returns the last words of processes that ended: others may wait for them in vain."""
        ended = [process for process in self._started if process.popen.poll() is not None]
        return "".join(f"\n{process.text()[-1000:]}" for process in ended)

    def checkpoints(self) -> list[Path]:
        return sorted((self.out / "checkpoints").glob("[0-9]" * 12))

    def alive(self) -> dict[int, str]:
        """Every process that carries this test's word, however it was started."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    mine = f"{WORD}={self.word}".encode() in (entry / "environ").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    command = (entry / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
                if mine and state != "Z":
                    found[int(entry.name)] = command
        return found

    def nothing_is_left(self, *, timeout_s: float = 0.0) -> None:
        """No process, no socket folder, no shared memory."""
        until(lambda: not self.alive(), "still there: ", timeout_s=timeout_s, why=self.alive)
        assert list(self.temporary.glob("headrace-*")) == []
        # Waits: a node may just have made its folder, and not have taken it yet.
        until(lambda: not self._forsaken(), "left: ", timeout_s=LONG_S, why=self._forsaken)

    def _forsaken(self) -> set[str]:
        news = {name for name in shared_memory() - self._shared_memory if "headrace" in name}
        if not self._nodes:  # then it is of a test beside this one, which has killed its node
            news = {name for name in news if not name.startswith("headrace-node-")}
        return {name for name in news if forsaken(name)}

    def close(self) -> None:
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._started:
            process.popen.wait()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    # Not tmp_path: a socket's path has at most a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="hr-"))
    # What is measured starts as users start it.
    made = Place(folder, cold=request.node.get_closest_marker("alone") is not None)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tcp() -> str:
    """An address whose port, and the next one, are free now."""
    return f"tcp://127.0.0.1:{ports.free(2)}"
