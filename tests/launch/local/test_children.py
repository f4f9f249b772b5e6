"""Processes that are forked, watched and started again.

A test forks from an interpreter of its own: the one that runs the tests has threads.
"""

import subprocess
import sys
import textwrap

import pytest

from tests.launch.scripted import run_script

pytestmark = pytest.mark.processes

PRELUDE = """
import asyncio, json, os, signal, sys, time
from headrace.launch.process import logs, runtime
from headrace.launch.local.children import Children, GaveUpError

children = Children()

def tell(fact):
    print(json.dumps(fact), flush=True)

def dead(child):
    '''Waits until it has ended, and leaves it to be reaped.'''
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
"""


def test_a_child_ends_with_what_its_role_returns() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        def leave(): raise SystemExit(3)
        def fail(): raise RuntimeError("no such thing")
        roles = {"good": lambda: 0, "bad": lambda: 2, "left": leave, "failed": fail}
        made = [children.fork(name, role, []) for name, role in roles.items()]
        assert all(child.pid in children.alive() or child.status is not None for child in made)
        ended = []
        while children.alive():
            ended += children.reap()
        tell({child.name: child.status for child in ended})
        tell([children.reap() == [], len(ended)])
        """,
    )
    assert told == [{"good": 0, "bad": 2, "left": 3, "failed": 1}, [True, 4]]
    assert "failed ERROR failed failed" in errors
    assert "RuntimeError: no such thing" in errors


def test_who_ends_while_another_is_waited_for_is_told_of_later() -> None:
    told, _ = run_script(
        PRELUDE,
        """
        early = children.fork("early", lambda: 2, [])
        dead(early)
        other = children.fork("other", lambda: 0, [])
        children.wait([other], timeout_s=20.0)
        tell([child.name for child in children.reap()])
        tell(children.reap())
        """,
    )
    assert told == [["early"], []]


def test_nothing_of_a_child_unwinds_into_the_parents_code() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        def interrupted(): raise KeyboardInterrupt
        parent = os.getpid()
        try:
            child = children.fork("child", interrupted, [])
        finally:
            tell("the parent" if os.getpid() == parent else "the child")
        dead(child)
        children.reap()
        tell(child.status)
        """,
    )
    assert told == ["the parent", 1]
    assert "child failed" in errors
    assert "KeyboardInterrupt" in errors


def test_stop_asks_first_and_then_insists() -> None:
    told, _ = run_script(
        PRELUDE,
        """
        reader, writer = os.pipe()
        def polite():
            os.write(writer, b"p")
            time.sleep(60)
            return 0
        def deaf():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, b"d")
            time.sleep(60)
            return 0
        made = [children.fork("polite", polite, []), children.fork("deaf", deaf, [])]
        assert len(os.read(reader, 1) + os.read(reader, 1)) == 2
        children.stop(made[:1], timeout_s=5.0)
        tell([child.status for child in made])
        began = time.monotonic()
        children.stop(made, timeout_s=0.3)
        tell([child.status for child in made])
        tell(0.3 <= time.monotonic() - began < 5.0)
        """,
    )
    assert told == [[-15, None], [-15, -9], True]


def test_a_child_asked_to_end_before_its_role_began_just_ends() -> None:
    """The parent's own handler, which unwinds the parent, is not the child's."""
    told, errors = run_script(
        PRELUDE,
        """
        def unwind(*_): raise RuntimeError("the parent's handler")
        signal.signal(signal.SIGTERM, unwind)
        reader, writer = os.pipe()
        child = children.fork("child", lambda: os.write(writer, b"r") + time.sleep(60), [])
        os.read(reader, 1)
        children.stop([child], timeout_s=5.0)
        tell(child.status)
        """,
    )
    assert told == [-15]
    assert errors == ""


def test_restart_is_a_fresh_interpreter_with_its_arguments() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        child = children.fork("child", lambda: 1, ["no-such-role"])
        dead(child)
        children.reap()
        first = child.pid
        children.restart(child)
        tell([child.status, child.pid != first, children.alive() == [child.pid]])
        dead(child)
        tell([gone.name for gone in children.reap()])
        tell(child.status)
        """,
    )
    assert told == [[None, True, True], ["child"], 2]
    assert "child ended with status 1; starting it again" in errors
    assert "invalid choice: 'no-such-role'" in errors


@pytest.mark.parametrize("quiet", [True, False])
def test_what_is_started_again_says_as_much_as_before(quiet: bool) -> None:
    told, _ = run_script(
        PRELUDE,
        f"""
        import subprocess
        logs.start("train", quiet={quiet}, form="json")
        popen, words = subprocess.Popen, []
        def start(command, **options):
            words.append([*command[1:], options["env"]["HEADRACE_LOG"]])
            return popen(["/bin/false"], **options)
        subprocess.Popen = start
        child = children.fork("child", lambda: 0, ["actor", "--name", "a"])
        dead(child)
        children.reap()
        children.restart(child)
        dead(child)
        tell(words[0])
        """,
    )
    level = ["--log-level", "warning"] if quiet else []
    assert told == [["-m", "headrace.launch.cli", *level, "actor", "--name", "a", "json"]]


def test_a_child_that_dies_too_often_is_given_up() -> None:
    told, errors = run_script(
        PRELUDE,
        """
        sys.executable = "/bin/false"
        child = children.fork("child", lambda: os.kill(os.getpid(), 9), [])
        try:
            for count in range(100):
                dead(child)
                children.reap()
                children.restart(child)
        except GaveUpError as error:
            tell([count, str(error)])
        """,
    )
    assert told == [
        [5, "child ended 6 times within 60 s (last: ended with status 1); see its lines above"]
    ]
    assert "child was killed by SIGKILL; starting it again" in errors


def test_old_deaths_are_forgiven() -> None:
    told, _ = run_script(
        PRELUDE,
        """
        sys.executable = "/bin/false"
        child = children.fork("child", lambda: 0, [])
        now = 0.0
        time.monotonic = lambda: now
        for _ in range(20):
            dead(child)
            children.reap()
            children.restart(child)
            now += 61 / 5
        tell(len(child.deaths))
        """,
    )
    assert told == [5]


def test_no_exit_status_is_lost_when_two_die_and_one_is_started_again() -> None:
    """Starting a process tidies up after processes that nobody holds any more."""
    told, _ = run_script(
        PRELUDE,
        """
        import warnings
        warnings.simplefilter("ignore")  # raised, it would stop the tidying
        sys.executable = "/bin/false"
        one, two = [children.fork(name, lambda: 0, []) for name in ("one", "two")]
        for child in (one, two):
            dead(child)
        children.reap()
        children.restart(one)
        dead(one)
        children.restart(two)
        dead(two)
        tell(sorted(child.name for child in children.reap()))
        tell([one.status, two.status])
        """,
    )
    assert told == [["one", "two"], [1, 1]]


# An asyncio role that ends with 7 when it is told to go on, and with 0 when it is asked to stop.
ROLE = """
import asyncio, os, sys
from headrace.launch.process import runtime

async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(int(os.environ["GO"]), told.set)
    os.write(int(os.environ["READY"]), b"r")
    await told.wait()
    return 7

sys.exit(runtime.run_async(main))
"""


@pytest.mark.parametrize("anew", [False, True])
def test_ctrl_c_reaches_only_the_parent(anew: bool) -> None:
    """A terminal sends SIGINT to everybody."""
    told, _ = run_script(
        PRELUDE,
        f"""
        ROLE, ANEW = {ROLE!r}, {anew}
        import subprocess
        (ready, tell_ready), (go, tell_go) = os.pipe(), os.pipe()
        os.environ.update(READY=str(tell_ready), GO=str(go))
        child = children.fork("child", lambda: 0 if ANEW else exec(ROLE), [])
        if ANEW:
            dead(child)
            children.reap()
            popen = subprocess.Popen
            subprocess.Popen = lambda _, **options: popen(
                [sys.executable, "-c", ROLE], pass_fds=(go, tell_ready), **options
            )
            children.restart(child)
        os.read(ready, 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT)
        os.write(tell_go, b"g")
        dead(child)
        children.reap()
        tell(child.status)
        """,
    )
    assert told == [7]


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_children_end_with_their_parent(how: str) -> None:
    """Their standard output is the parent's: it is at its end only when all of them are gone."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PRELUDE
            + textwrap.dedent(
                f"""
                reader, writer = os.pipe()
                def role():
                    os.write(writer, b"r")
                    time.sleep(60)
                    return 0
                children.fork("child", role, [])
                os.read(reader, 1)
                {how}
                """
            ),
        ],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode in (0, -9)
