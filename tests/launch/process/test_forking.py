"""Processes forked by one in between. A test forks from an interpreter of its own: the one that
runs the tests has threads."""

import pytest

from tests.launch.scripted import run_script

pytestmark = pytest.mark.processes

PRELUDE = """
import json, os, sys, time
from headrace.launch.process import forking, runtime
from headrace.launch.process.forking import Work

assert runtime.adopt_orphans()

def tell(fact):
    print(json.dumps(fact), flush=True)

def status(pid):
    while (ended := forking.exit_status(pid)) is None:
        time.sleep(0.01)
    return ended
"""


def test_children_share_what_was_prepared_and_are_the_adopters() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        main, prepared = os.getpid(), []
        def role(number):
            return number if prepared and os.getppid() == main else 99
        works = [Work(f"role-{n}", lambda n=n: role(n)) for n in (3, 4)]
        pids = forking.fork_for(main, works, prepare=lambda: prepared.append("torch"))
        tell([status(pid) for pid in pids])
        tell(prepared)
        """,
    )
    assert (told, errors) == ([[3, 4], []], "")


def test_why_they_could_not_be_started_is_told() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        def fails(): raise ImportError("no torch")
        try:
            forking.fork_for(os.getpid(), [Work("role", lambda: 0)], prepare=fails)
        except ChildProcessError as error:
            tell(str(error))
        """,
    )
    assert told == ["ended with status 1"]
    assert "forker failed" in errors and "no torch" in errors


def test_the_adopter_need_not_be_the_one_that_asks() -> None:
    """As on a node: its forker may be killed, and what it forked lives on."""
    told, _ = run_script(
        PRELUDE,
        """
        main = os.getpid()
        (going, go), (pids, tell_pid) = os.pipe(), os.pipe()
        def forker():
            (pid,) = forking.fork_for(main, [Work("role", lambda: len(os.read(going, 1)))])
            os.write(tell_pid, str(pid).encode())
            os.kill(os.getpid(), 9)
        killed = status(forking.fork(Work("forker", forker)))
        os.write(go, b"g")
        tell([forking.exit_words(killed), status(int(os.read(pids, 20)))])
        """,
    )
    assert told == [["was killed by SIGKILL", 1]]
