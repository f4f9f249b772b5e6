"""What every process does the same."""

import logging

import pytest

from headrace.launch import arguments
from headrace.launch.process import http


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
    given = arguments.parser().parse_args(words)
    assert (given.metrics_host, given.metrics_port) == ("127.0.0.1", None)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_open_to_others_are_warned_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert http.serve(http.registry("actor"), host=host, port=0, healthy=lambda: "")
    assert ("open to whoever reaches it" in caplog.text) == warned
