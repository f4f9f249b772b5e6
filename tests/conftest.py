"""Lines of figures from the tests, shown at the end of the session.

They travel in the tests' reports, so they arrive from worker processes too.
"""

import os
from collections.abc import Generator

import pytest

from tests.system.harness import figures

# Tests read what processes say through pipes and files, as people would on a terminal.
os.environ["HEADRACE_LOG"] = "human"

_shown: list[str] = []  # in the order in which the tests ended


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
