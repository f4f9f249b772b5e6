"""What every process does the same."""

import logging
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest

from launch import arguments, web


@pytest.mark.parametrize(
    "words",
    [["broker", "--run", "cartpole"], ["learner", "--run", "cartpole"],
     ["actor", "--broker", "ipc:///b"], ["evaluate", "--broker", "ipc:///b"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_metrics_stay_on_this_machine_unless_told_otherwise(words: list[str]) -> None:
    given = arguments.parser().parse_args(words)
    assert (given.metrics_host, given.metrics_port) == ("127.0.0.1", None)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_open_to_others_are_warned_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert web.serve(
            web.registry("actor"), host=host, port=0, healthy=lambda: ""
        )  # fmt: skip
    assert ("open to whoever reaches it" in caplog.text) == warned


def test_connections_that_say_nothing_take_no_more_threads_than_there_are() -> None:
    port = web.serve(web.registry("actor"), host="127.0.0.1", port=0, healthy=lambda: "")
    before = threading.active_count()
    address = f"http://127.0.0.1:{port}/healthz"
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
            for _ in range(40)
        ]
        closed, _, _ = select.select(silent, [], [], 20.0)
        assert closed  # these were too many
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            urllib.request.urlopen(address, timeout=20.0)
        assert threading.active_count() <= before + 32
    for _ in range(200):  # each thread sees for itself that its peer is gone
        with suppress(OSError), urllib.request.urlopen(address, timeout=20.0) as answer:
            assert answer.read() == b"ok\n"
            return
        time.sleep(0.05)
    pytest.fail("no room though nobody is there")
