"""The option of `make fast`, and lines of figures from the tests, shown at the session's end.

The lines travel in the tests' reports, so they arrive from worker processes too.
"""

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

from tests.fast import FastGate
from tests.system.harness import figures

# Tests read what processes say through pipes and files, as people would on a terminal.
os.environ["HEADRACE_LOG"] = "human"
# A shell starts what runs in the background with Ctrl-C ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Four tests run at a time: how long an example takes says nothing about it.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")

_shown: list[str] = []  # in the order in which the tests ended


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="as make fast: see tests/fast.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        config.pluginmanager.register(FastGate())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    while figures.lines:
        report.user_properties.append(("figures", figures.lines.pop(0)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _shown.extend(str(line) for name, line in report.user_properties if name == "figures")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in dict.fromkeys(_shown):  # a test's later phases repeat what was reported
        terminalreporter.write_line(line)


@pytest.fixture
def one_thread() -> Generator[None]:
    """Lets torch use one thread: it adds up in one order, and threads that wait for a busy core
    make drawing orthogonal weights 30 times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
