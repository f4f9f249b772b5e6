"""Errors that are collected for the broker, beside the line that each of them is."""

import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.broker.peer_errors import UnreportedErrors
from headrace.launch.process import logs


@pytest.fixture
def reports() -> Iterator[UnreportedErrors]:
    root = logging.getLogger()
    before = root.handlers[:]
    # A role that ran in this process may have left its own.
    root.handlers[:] = others = [one for one in before if not isinstance(one, logs._ToReports)]
    logs.reports()
    collected = logs.reports()
    assert len(root.handlers) == len(others) + 1  # one collector
    yield collected
    root.handlers[:] = before


def test_errors_are_collected(reports: UnreportedErrors) -> None:
    log = logging.getLogger("launch.somewhere")
    log.warning("no trouble")
    log.error("version %d is not evaluated", 3)
    try:
        raise ValueError("no arm")
    except ValueError as error:
        log.exception("it failed")
        log.exception("it failed: %s: %s", type(error).__name__, error)
    assert reports.take() == [
        ("version 3 is not evaluated", 1),
        ("it failed: ValueError: no arm", 2),
    ]


def test_what_fails_on_the_way_to_the_broker_is_not_sent_there(reports: UnreportedErrors) -> None:
    logging.getLogger("headrace.broker.transport.link").error("the broker fell silent")
    assert reports.take() == []


def test_several_threads_collect(reports: UnreportedErrors) -> None:
    log = logging.getLogger("headrace.learner.batches.receiver")
    told: list[tuple[str, int]] = []

    def fail(thread: int) -> None:
        for count in range(500):
            log.error("%s is broken, %d times", "abcd"[thread], count)

    threads = [threading.Thread(target=fail, args=(thread,)) for thread in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # let them meet
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            told += reports.take()
    finally:
        sys.setswitchinterval(interval)
    told += reports.take()
    for name in "abcd":
        assert sum(count for text, count in told if text.startswith(name)) == 500
