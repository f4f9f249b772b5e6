"""The gate of `make fast` lets nothing through that is slow or starts a process."""

import time
from pathlib import Path

import pytest

from tests import fast
from tests.fast import FastGate

pytest_plugins = ["pytester"]

MARKS = "[pytest]\nmarkers =\n    slow\n    processes\n    alone\n"
LONG = """
import time

def test_long():
    began = time.thread_time()
    while time.thread_time() < began + 0.02:
        pass
"""


def outcomes(pytester: pytest.Pytester, source: str, gate: FastGate) -> tuple[int, int, int]:
    """Returns how many tests passed, were skipped and failed."""
    pytester.makeini(MARKS)
    pytester.makepyfile(source)
    counted = pytester.inline_run("-p", "no:xdist", plugins=[gate]).countoutcomes()
    return counted[0], counted[1], counted[2]


@pytest.mark.parametrize(("limit_s", "expected"), [(60.0, (1, 0, 0)), (0.01, (0, 0, 1))])
def test_a_test_over_the_limit_fails(
    pytester: pytest.Pytester, limit_s: float, expected: tuple[int, int, int]
) -> None:
    assert outcomes(pytester, LONG, FastGate(limit_s)) == expected


def test_waiting_for_a_core_is_not_the_tests_own_time(pytester: pytest.Pytester) -> None:
    clock = iter([1.0, 1000.0])
    assert outcomes(pytester, LONG, FastGate(0.01, lambda: next(clock))) == (1, 0, 0)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only Linux tells it")
def test_working_and_sleeping_are_not_waiting_for_a_core() -> None:
    before, began, cpu_s = fast.waited_s(), time.perf_counter(), time.thread_time()
    while time.thread_time() < cpu_s + 0.05:
        pass
    time.sleep(0.05)
    busy_s = time.thread_time() - cpu_s
    assert 0 <= fast.waited_s() - before <= time.perf_counter() - began - busy_s - 0.045


@pytest.mark.parametrize("mark", ["slow", "processes", "alone"])
def test_what_is_marked_is_left_out(pytester: pytest.Pytester, mark: str) -> None:
    source = LONG.replace("def ", f"import pytest\n@pytest.mark.{mark}\ndef ")
    assert outcomes(pytester, source, FastGate(0.01)) == (0, 0, 0)


def test_what_asks_for_a_place_is_left_out(pytester: pytest.Pytester) -> None:
    source = (
        "import pytest\n@pytest.fixture\ndef place():\n    raise RuntimeError\n"
        "def test_there(place):\n    pass\n"
    )
    assert outcomes(pytester, source, FastGate()) == (0, 0, 0)


STARTS = {
    "a child": "subprocess.run(['true'])",
    "a fork": "os.fork() or os._exit(0)",
    "a spawned process": "multiprocessing.get_context('spawn').Process(target=print).start()",
    "a shell": "os.system('true')",
    "a thread's": "thread = threading.Thread(target=os.system, args=('true',));"
    " thread.start(); thread.join()",
}


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("where", ["test", "fixture"])
@pytest.mark.parametrize("what", STARTS)
def test_a_test_that_starts_a_process_fails(
    pytester: pytest.Pytester, what: str, where: str
) -> None:
    """Also when the code that was refused takes every exception for its own."""
    source = (
        "import multiprocessing, os, subprocess, threading\nimport pytest\n"
        f"def start():\n    try:\n        {STARTS[what]}\n    except Exception:\n        pass\n"
        "@pytest.fixture\n"
        f"def started():\n    {'start()' if where == 'fixture' else 'pass'}\n"
        f"def test_it(started):\n    {'start()' if where == 'test' else 'pass'}\n"
    )
    passed, skipped, failed = outcomes(pytester, source, FastGate(60.0))
    assert (passed, skipped) == (0, 0) and failed


def test_a_process_between_the_tests_is_none_of_its_business(pytester: pytest.Pytester) -> None:
    gate = FastGate()
    gate._hear("os.system", ("true",))
    assert outcomes(pytester, "def test_it():\n    pass\n", gate) == (1, 0, 0)
