"""What every process does the same."""

import logging
import subprocess
import sys

import pytest

from headrace.launch import cli
from headrace.launch.web import http


@pytest.mark.parametrize(
    "words",
    [
        ["broker", "--run", "cartpole"],
        ["learner", "--run", "cartpole"],
        ["actor", "--broker", "ipc:///b"],
        ["evaluate", "--broker", "ipc:///b"],
    ],
    ids=lambda words: words[0],
)
def test_metrics_stay_on_this_machine_unless_told_otherwise(words: list[str]) -> None:
    given = cli.parser().parse_args(words)
    assert (given.metrics_host, given.metrics_port) == ("127.0.0.1", None)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_open_to_others_are_warned_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert http.serve(http.registry("actor"), host=host, port=0, healthy=lambda: "")
    assert ("open to whoever reaches it" in caplog.text) == warned


# A role that waits for what is open when it is asked to stop, unless it is asked again.
WAITS = """
import asyncio, ctypes, os, signal, sys, threading, time
from headrace.launch.process import runtime

async def main():
    os.write(tell_ready, b"r")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seconds = runtime.may_wait(4)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            seconds = 0
        print("waited" if seconds else "gave up", flush=True)
        raise

(ready, tell_ready), parent = os.pipe(), os.getpid()
pid = os.fork()
if pid == 0:
    runtime.die_with_parent(parent)
    os._exit(runtime.run_async(main))
os.read(ready, 1)
"""


def ends_by(script: str) -> str:
    """What the role says at its end."""
    done = subprocess.run(
        [sys.executable, "-c", WAITS + script], capture_output=True, text=True, timeout=30
    )
    assert not done.stderr
    return done.stdout.strip()


@pytest.mark.processes
def test_a_parent_whose_threads_die_one_by_one_asks_once() -> None:
    """Each of them sends the signal, and until the last the parent looks alive."""
    dies_slowly = """
for after in (0.2, 0.4):
    threading.Thread(target=time.sleep, args=(after,), daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    assert ends_by(dies_slowly) == "waited"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("second", "end"), [("signal.SIGTERM", "waited"), ("runtime.GIVE_UP", "gave up")]
)
def test_what_others_ask_too_is_one_request_and_a_parent_may_ask_again(
    second: str, end: str
) -> None:
    asks_twice = f"""
for number in (signal.SIGTERM, {second}):
    os.kill(pid, number)
    time.sleep(0.2)
os.waitpid(pid, 0)
"""
    assert ends_by(asks_twice) == end


@pytest.mark.processes
def test_two_requests_that_come_at_once_are_two() -> None:
    """As on a busy machine: the second comes before the first was noticed."""
    asks_at_once = """
os.kill(pid, signal.SIGSTOP)
for number in (signal.SIGTERM, runtime.GIVE_UP, signal.SIGCONT):
    os.kill(pid, number)
os.waitpid(pid, 0)
"""
    assert ends_by(asks_at_once) == "gave up"
