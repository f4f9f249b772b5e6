"""Environments that raise, hang, die or are wrong: the others go on, and nothing is left behind."""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Stepper
from headrace.actors.stepping.threads import ThreadStepper
from headrace.learner.spaces import DEAD

ROOT = Path(__file__).resolve().parents[3]
SEED = 100
NO_ACTION = np.zeros(1, np.int64)
PROCESSES = pytest.param(ProcessStepper, marks=pytest.mark.processes)
WAYS: list[Any] = [InlineStepper, ThreadStepper, PROCESSES]

# Written to a file, so that a worker process can import it. What it does wrong is told by files
# named after the fault and the column, which its first seed tells.
TROUBLED = '''
import os, pathlib, random, subprocess, time
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete

class Troubled(gymnasium.Env):
    def __init__(self, folder, wait=0.0):
        self.folder, self.wait = pathlib.Path(folder), wait
        self.observation_space = Box(-1e9, 1e9, (3,), np.float32)
        self.action_space = Discrete(2)
        self.column, self.episode, self.at = -1, 0, 0
        if (self.folder / "unmakable").exists():
            raise RuntimeError("no licence")

    def asked(self, fault):
        """Once."""
        try:
            (self.folder / f"{fault}-{self.column}").unlink()
        except FileNotFoundError:
            return False
        return True

    def obs(self):
        return np.array([self.column, self.seed, self.at], np.float32)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seed, self.column = seed, (seed - 100) % 1_000_003
        self.at = 0
        if self.asked("reset"):
            raise RuntimeError("the simulator is gone")
        if self.asked("spaces"):
            self.observation_space = Box(-1e9, 1e9, (4,), np.float32)
        if self.asked("outside"):
            return self.obs() * np.float32(1e9) + np.float32(3e9), {}
        return self.obs(), {}

    def step(self, action):
        self.at += 1
        if self.wait:
            time.sleep(self.wait)
        if any(self.folder.iterdir()):
            if self.asked("raise"):
                raise RuntimeError("the simulator is gone")
            if self.asked("leave"):
                raise SystemExit("bye")
            if self.asked("exit"):
                os._exit(3)
            if self.asked("short"):
                return self.obs()[:2], 1.0, False, False, {}
            if self.asked("reward"):
                return self.obs(), None, False, False, {}
            if self.asked("end"):
                return self.obs(), 1.0, True, False, {}
            if self.asked("unmakable soon"):
                (self.folder / "unmakable").touch()
                raise RuntimeError("licence withdrawn")
            if self.asked("hang"):
                while not (self.folder / f"release-{self.column}").exists():
                    time.sleep(0.001)
        return self.obs(), 1.0, False, False, {}

    def close(self):
        with (self.folder.parent / "closed").open("a") as file:
            file.write(f"{self.column}\\n")

class Loose(Troubled):
    """It plays with the global dice, and starts a process."""
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None and seed >= 100:
            with (self.folder.parent / "started").open("a") as file:
                file.write(f"{subprocess.Popen(['sleep', '60']).pid}\\n")
        return np.array([random.random(), np.random.random(), 0.0], np.float32), {}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "troubled.py").write_text(TROUBLED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "troubled", raising=False)
    (tmp_path / "faults").mkdir()
    return tmp_path / "faults"


def config(folder: Path, wait: float = 0.0) -> EnvConfig:
    return EnvConfig("troubled:Troubled", {"folder": str(folder), "wait": wait})


def built(kind: Any, env: EnvConfig, *, groups: int, envs: int, **options: Any) -> Stepper:
    stepper: Stepper = kind(EnvsSpec(env, probe(env), groups, envs, SEED), **options)
    return stepper


class Play:
    """A stepper that is played, with what came of it."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.frame = stepper, stepper.frame
        self.news = asyncio.Event()
        self.failures: list[EnvFailure] = []
        self._ready: set[int] = set()

    async def start(self) -> None:
        self.stepper.start(self.news)
        await self.wait(*range(self.frame.groups))

    async def wait(self, *groups: int, seconds: float = 15.0) -> None:
        async with asyncio.timeout(seconds):
            while not self._take() >= set(groups):
                await self.news.wait()
                self.news.clear()
        self._ready -= set(groups)

    async def step(self, *groups: int) -> None:
        for group in groups:
            self.stepper.send(group, np.zeros(self.frame.envs, np.int64))
        await self.wait(*groups)

    async def fails(self, seconds: float = 15.0) -> EnvFailure:
        """The next failure."""
        async with asyncio.timeout(seconds):
            while not self.failures:
                self._take()
                if not self.failures:
                    await self.news.wait()
                    self.news.clear()
        return self.failures.pop(0)

    def row(self, column: int) -> list[float]:
        """(column, seed, step)."""
        return [float(number) for number in self.frame.obs["obs"][column]]

    def anew(self, column: int) -> None:
        """It shows a dead step and a first observation of another seed."""
        assert (self.frame.flags[column], self.frame.reward[column]) == (DEAD, 0.0)
        assert self.row(column)[1] > SEED + 1_000_000
        assert self.row(column)[2] == 0.0

    def _take(self) -> set[int]:
        self._ready |= set(self.stepper.ready())
        self.failures += self.stepper.failures()
        return self._ready


def play(stepper: Stepper, story: Callable[[Play], Awaitable[None]]) -> None:
    async def run() -> None:
        playing = Play(stepper)
        try:
            await playing.start()
            await story(playing)
        finally:
            stepper.close()

    asyncio.run(run())


async def begun_hanging(folder: Path) -> None:
    async with asyncio.timeout(120):
        while (folder / "hang-0").exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.001)


def release(folder: Path) -> None:
    """And wait for the threads that were given up."""
    (folder / "release-0").touch()
    for thread in threading.enumerate():
        if thread.name == "env-0":
            thread.join(5.0)


# ---- one fails ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "RuntimeError: the simulator is gone"),
        ("leave", "SystemExit: bye"),
        ("short", "ValueError: "),
        ("reward", "TypeError: "),
    ],
)
@pytest.mark.parametrize("kind", WAYS)
def test_a_failed_step_is_a_dead_step(kind: Any, folder: Path, fault: str, words: str) -> None:
    async def story(playing: Play) -> None:
        for _ in range(5):
            await playing.step(0, 1)
        (folder / f"{fault}-2").touch()  # the first of group 1
        await playing.step(0, 1)
        failure = await playing.fails()
        assert failure[:4] == (2, "step", SEED + 2, 5)
        assert words in failure.text
        assert "Traceback" in failure.text
        playing.anew(2)
        for column in (0, 1, 3):  # the others have not noticed
            assert playing.row(column)[2] == 6.0
            assert playing.frame.flags[column] == 0
        await playing.step(1)
        assert playing.row(2)[2] == 1.0
        assert (playing.frame.flags[2], playing.frame.reward[2]) == (0, 1.0)
        assert playing.failures == []

    play(built(kind, config(folder), groups=2, envs=2), story)
    assert "2\n" in (folder.parent / "closed").read_text()


@pytest.mark.parametrize("fault", ["reset", "spaces", "outside"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_failed_reset_is_a_dead_step(kind: Any, folder: Path, fault: str) -> None:
    async def story(playing: Play) -> None:
        (folder / "end-0").touch()
        (folder / f"{fault}-0").touch()
        await playing.step(0, 1)
        assert playing.failures == []
        await playing.step(0, 1)
        failure = await playing.fails()
        assert failure[:4] == (0, "reset", SEED, 1)
        words = {"spaces": "changed its spaces from", "outside": "ValueError"}
        assert words.get(fault, "simulator is gone") in failure.text
        playing.anew(0)
        assert playing.row(1)[2] == 2.0

    play(built(kind, config(folder), groups=2, envs=1), story)


@pytest.mark.parametrize("kind", [ThreadStepper, PROCESSES])
def test_one_that_cannot_be_made_again_is_tried_until_it_can(kind: Any, folder: Path) -> None:
    async def story(playing: Play) -> None:
        (folder / "unmakable soon-0").touch()
        playing.stepper.send(0, NO_ACTION)
        assert (await playing.fails()).where == "step"
        for _ in range(2):
            failure = await playing.fails()
            assert failure.where == "make"
            assert "no licence" in failure.text
        for _ in range(10):
            await playing.step(1)
        (folder / "unmakable").unlink()
        await playing.wait(0)
        playing.anew(0)

    play(built(kind, config(folder), groups=2, envs=1), story)


def test_inline_gives_up_one_that_cannot_be_made_again(folder: Path) -> None:
    async def story(playing: Play) -> None:
        (folder / "unmakable soon-0").touch()
        with pytest.raises(EnvError, match="no licence"):
            playing.stepper.send(0, NO_ACTION)

    play(built(InlineStepper, config(folder), groups=2, envs=1), story)


@pytest.mark.parametrize("fault", ["make", "reset"])
@pytest.mark.parametrize("kind", WAYS)
def test_what_never_worked_is_the_user_s(kind: Any, folder: Path, fault: str) -> None:
    stepper = built(kind, config(folder), groups=2, envs=1)
    (folder / {"make": "unmakable", "reset": "reset-1"}[fault]).touch()
    with pytest.raises(EnvError) as caught:
        play(stepper, lambda playing: playing.step(0))
    assert {"make": "no licence", "reset": "failed in reset (environment 1, seed 101)"}[
        fault
    ] in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- one hangs or dies ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ThreadStepper, PROCESSES])
def test_a_slow_group_delays_nobody(kind: Any, folder: Path) -> None:
    async def story(playing: Play) -> None:
        (folder / "hang-0").touch()
        playing.stepper.send(0, NO_ACTION)
        for _ in range(100):
            await playing.step(1)
        assert playing.stepper.ready() == []
        (folder / "release-0").touch()
        await playing.wait(0)
        assert playing.row(0)[2] == 1.0
        assert playing.failures == []

    play(built(kind, config(folder), groups=2, envs=1), story)


@pytest.mark.parametrize("kind", [ThreadStepper, PROCESSES])
def test_a_hung_step_is_given_up(kind: Any, folder: Path) -> None:
    async def story(playing: Play) -> None:
        await playing.step(0, 1)
        (folder / "hang-0").touch()
        playing.stepper.send(0, NO_ACTION)
        failure = await playing.fails()
        assert failure[:4] == (0, "time-out", SEED, 1)
        assert "no answer for" in failure.text
        assert "troubled.py" in failure.text  # where it hangs
        await playing.wait(0)
        playing.anew(0)
        await playing.step(0, 1)
        assert playing.row(0)[2] == 1.0
        assert playing.row(1)[2] == 2.0

    play(built(kind, config(folder), groups=2, envs=1, timeout_s=0.3), story)
    release(folder)


def test_a_thread_that_wakes_up_late_writes_nowhere(folder: Path) -> None:
    async def story(playing: Play) -> None:
        hung = next(t for t in threading.enumerate() if t.name == "env-0")
        (folder / "hang-0").touch()
        playing.stepper.send(0, NO_ACTION)
        await playing.wait(0)
        before = playing.row(0), playing.frame.flags[0], playing.frame.spent[0]
        (folder / "release-0").touch()
        hung.join(5.0)
        assert not hung.is_alive()
        assert (playing.row(0), playing.frame.flags[0], playing.frame.spent[0]) == before
        assert playing.stepper.ready() == []

    play(built(ThreadStepper, config(folder), groups=2, envs=1, timeout_s=0.3), story)


def processes_of(pid: int) -> list[int]:
    """Children, living or not yet reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text()
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(text.split()[0]))
    return found


# Children of this process that were there before the test, as another test's warmed parent is.
OTHERS: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(processes_of(os.getpid()))


def hosts() -> list[int]:
    return [pid for pid in processes_of(os.getpid()) if pid not in OTHERS]


def workers() -> list[int]:
    """In the order of their groups: that is how they were forked."""
    (host,) = hosts()
    return sorted(processes_of(host))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("death", "pending"),
    [("exit", True), ("worker", True), ("worker", False), ("host", True), ("host", False)],
)
def test_a_dead_worker_s_groups_begin_anew(folder: Path, death: str, pending: bool) -> None:
    async def story(playing: Play) -> None:
        await playing.step(0, 1, 2, 3)
        old = workers()
        if death == "exit":
            (folder / "exit-0").touch()
        elif pending:
            (folder / "hang-0").touch()
        if pending:
            playing.stepper.send(0, NO_ACTION)
        if death != "exit":
            await begun_hanging(folder) if pending else None
            host = hosts()[0]
            os.kill(old[0] if death == "worker" else host, signal.SIGKILL)
        failure = await playing.fails()
        assert failure[:4] == (0, "death", SEED, 1)
        words = "exit status 3" if death == "exit" else "killed by SIGKILL"
        assert words in failure.text
        before = playing.row(2)
        if pending:
            await playing.wait(0)
        else:
            await playing.step(0)
        playing.anew(0)
        # Its neighbour in the worker was idle: what it showed last stays until its next step.
        assert playing.row(2) == before
        await playing.step(1, 2, 3)
        playing.anew(2)
        if death == "host":
            playing.anew(1)
        else:
            assert playing.row(1)[2] == 2.0
        await playing.step(0, 1, 2, 3)
        assert playing.row(0)[2] == playing.row(2)[2] == 1.0

    play(built(ProcessStepper, config(folder), groups=4, envs=1, workers=2), story)


@pytest.mark.processes
def test_workers_have_dice_of_their_own_and_end_with_what_they_started(folder: Path) -> None:
    async def story(playing: Play) -> None:
        dice = playing.frame.obs["obs"][:, :2]
        assert len(np.unique(dice)) == dice.size
        started = [int(line) for line in (folder.parent / "started").read_text().split()]
        assert len(started) == 2
        os.kill(workers()[0], signal.SIGKILL)
        await playing.fails()
        async with asyncio.timeout(120):
            while not any(map(gone, started)):  # noqa: ASYNC110 - the kernel is at it
                await asyncio.sleep(0.001)

    env = EnvConfig("troubled:Loose", {"folder": str(folder)})
    play(built(ProcessStepper, env, groups=2, envs=1), story)
    started = [int(line) for line in (folder.parent / "started").read_text().split()]
    for pid in started:
        if not gone(pid):  # close() lets an environment end what it has started itself
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (InlineStepper, "raise"),
        (ThreadStepper, "raise"),
        pytest.param(ProcessStepper, "raise", marks=pytest.mark.processes),
        pytest.param(ProcessStepper, "exit", marks=pytest.mark.processes),
    ],
)
def test_the_others_go_on_meanwhile(kind: Any, folder: Path, fault: str) -> None:
    """No gap of 50 ms between steps of a millisecond; of ten tries, for the machine may be busy:
    who waits for the fault waits in all of them."""
    gaps = []

    async def story(playing: Play) -> None:
        last = [time.perf_counter()] * 4
        gap, failed, until = 0.0, 0, time.perf_counter() + 0.4
        for group in range(4):
            playing.stepper.send(group, NO_ACTION)
        (folder / f"{fault}-0").touch()
        async with asyncio.timeout(60):
            while time.perf_counter() < until or not failed:
                await asyncio.wait_for(playing.news.wait(), 5)
                playing.news.clear()
                for group in playing.stepper.ready():
                    now = time.perf_counter()
                    if group:
                        gap = max(gap, now - last[group])
                    last[group] = now
                    playing.stepper.send(group, NO_ACTION)
                failed += len(playing.stepper.failures())
        assert failed == 1
        gaps.append(gap)

    for _ in range(10):
        play(built(kind, config(folder, wait=0.001), groups=4, envs=1), story)
        if gaps[-1] <= 0.05:
            return
    pytest.fail(f"gaps of {gaps} s")


# ---- nothing is left ------------------------------------------------------------------------


def holdings() -> tuple[int, int, int]:
    """Threads, processes, file descriptors."""
    fds = len(list(Path("/proc/self/fd").iterdir()))
    return threading.active_count(), len(processes_of(os.getpid())), fds


@pytest.fixture
def nothing_left() -> Iterator[None]:
    gc.collect()  # what earlier tests have dropped
    before = holdings()
    yield
    gc.collect()
    assert holdings() == before


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", WAYS)
def test_close_leaves_nothing(kind: Any, folder: Path) -> None:
    stepped: list[float] = []

    async def story(playing: Play) -> None:
        await playing.step(0, 1, 2)
        stepped.append(time.monotonic())

    play(built(kind, config(folder), groups=3, envs=2), story)
    assert time.monotonic() - stepped[0] < 1.0  # nothing had to be killed
    closed = (folder.parent / "closed").read_text().split()
    assert sorted(closed) == ["-1", *(str(column) for column in range(6))]  # -1: it was probed


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_left")
def test_close_kills_what_hangs(folder: Path) -> None:
    async def story(playing: Play) -> None:
        (folder / "hang-0").touch()
        playing.stepper.send(0, NO_ACTION)
        await begun_hanging(folder)

    began = time.monotonic()
    play(built(ProcessStepper, config(folder), groups=2, envs=1), story)
    assert time.monotonic() - began < 5.0


@pytest.mark.slow
def test_close_waits_for_no_hung_thread(folder: Path) -> None:
    async def story(playing: Play) -> None:
        (folder / "hang-0").touch()
        playing.stepper.send(0, NO_ACTION)
        await begun_hanging(folder)

    began = time.monotonic()
    play(built(ThreadStepper, config(folder), groups=2, envs=1), story)
    assert time.monotonic() - began < 3.0
    release(folder)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.processes
def test_a_killed_sampler_leaves_no_process(folder: Path) -> None:
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(folder.parent)!r})
from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import probe
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.stepper import EnvsSpec
async def main():
    config = EnvConfig("troubled:Troubled", {{"folder": {str(folder)!r}}})
    stepper = ProcessStepper(EnvsSpec(config, probe(config), 3, envs=1, seed=1))
    news, up = asyncio.Event(), 0
    stepper.start(news)
    while up < 3:
        await news.wait()
        news.clear()
        up += len(stepper.ready())
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT
    ) as sampler:
        assert sampler.stdout is not None
        assert sampler.stdout.readline() == b"up\n"
        (host,) = processes_of(sampler.pid)
        family = [host, *processes_of(host)]
        assert len(family) == 4
        sampler.kill()
    until = time.monotonic() + 5.0
    while not all(map(gone, family)) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in family if not gone(pid)] == []


@pytest.mark.processes
def test_workers_carry_no_torch() -> None:
    script = "import sys, headrace.actors.stepping.processes.host; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_too_few_descriptors_are_said_beforehand(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Room for one environment beside what other tests of this process hold, not for 64 workers.
    held = holdings()[2]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 40, hard))
    try:
        with pytest.raises(
            EnvError, match=r"^64 workers need \d+ file descriptors, the limit here"
        ):
            built(ProcessStepper, config(folder), groups=64, envs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_threads_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = built(ThreadStepper, config(folder), groups=2, envs=1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(EnvError, match=r"lower actor.groups$"):
        play(stepper, lambda playing: playing.step(0))
