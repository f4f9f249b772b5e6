"""Lines about peers: counted where they are dropped, and none so often that a log is full."""

import logging

import pytest

from headrace.broker.config import BrokerConfig
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.rate_limits import RateLimits


def test_one_line_a_minute_about_each(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    lines = PeerLog(RateLimits(BrokerConfig()), counters)
    with caplog.at_level(logging.WARNING):
        for waited in (70, 71, 72):
            lines.once_a_minute("stale a", "a waited %d versions", waited)
        lines.once_a_minute("stale b", "b waited %d versions", 9)
    assert caplog.messages == ["a waited 70 versions", "b waited 9 versions"]
    assert counters.spared_lines == 2
