"""The gate of `make fast`: only tests that start no process, each at most two seconds long.

What is marked `slow`, `processes` or `alone`, asks for a `place`, or stands in tests/system is left
out. Of what remains, a test that starts a process, or takes longer, fails and says which mark it
needs: so nobody keeps a list.
"""

import multiprocessing.util
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 2.0
LEFT_OUT = ("slow", "processes", "alone")
SYSTEM = Path(__file__).resolve().parent / "system"
# Python tells its audit hooks of these before it does them, whoever asked.
STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
)


def waited_s() -> float:
    """Returns how long this thread was ready and had no core, so that other load fails no test."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # not a Linux
        return 0.0


class FastGate:
    """A plugin of pytest. What it does to processes holds while a test runs, and only then."""

    def __init__(self, limit_s: float = LIMIT_S, waited_s: Callable[[], float] = waited_s) -> None:
        self._limit_s = limit_s
        self._clock = waited_s
        self._running = False  # a test, or one of its fixtures, runs now
        self._started: list[str] = []  # ways in which this test tried to start a process
        self._waited_s = 0.0  # for a core, by the test that ran last
        self._patch = pytest.MonkeyPatch()
        sys.addaudithook(self._hear)  # for ever: Python cannot take one back

    def pytest_configure(self) -> None:
        # The only way round the audit hooks; multiprocessing spawns by it.
        spawn = multiprocessing.util.spawnv_passfds

        def refuse(*words: Any) -> Any:
            self._hear("multiprocessing", words, starts=frozenset({"multiprocessing"}))
            return spawn(*words)

        self._patch.setattr(multiprocessing.util, "spawnv_passfds", refuse)

    def pytest_unconfigure(self) -> None:
        self._patch.undo()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path == SYSTEM else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left = [item for item in items if _left_out(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._started.clear()
        self._running = True
        try:
            return (yield)
        finally:
            self._running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        before = self._clock()
        try:
            return (yield)
        finally:
            self._waited_s = self._clock() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._started:
            if not report.failed:  # the test, or a thread, swallowed the refusal
                _fail(report, f"starts a process ({self._started[0]}): mark it `processes`")
            self._started.clear()  # told once, not again for the later phases
        elif report.when == "call" and report.passed:
            took_s = report.duration - self._waited_s
            if took_s > self._limit_s:
                _fail(
                    report,
                    f"took {took_s:.1f} s, not at most {self._limit_s:.1f}:"
                    " make it shorter, or mark it `slow`",
                )
        return report

    def _hear(self, event: str, words: tuple[Any, ...], *, starts: frozenset[str] = STARTS) -> None:
        if self._running and event in starts:
            self._started.append(event)
            # No Exception, so that code which expects those does not swallow it.
            pytest.fail(f"a test of `make fast` may start no process ({event} {words!r:.200})")


def _left_out(item: pytest.Item) -> bool:
    """A `place` is there to start processes in."""
    marked = any(item.get_closest_marker(name) for name in LEFT_OUT)
    return marked or "place" in getattr(item, "fixturenames", ())


def _fail(report: pytest.TestReport, line: str) -> None:
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} {line}"
