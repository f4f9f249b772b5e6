"""Checks what the broker logs of its decisions."""

import logging
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from headrace.broker.config import BrokerConfig
from headrace.broker.server import send_decisions
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.rate_limits import RateLimits
from tests.broker.ledger.accounts import learn, ready, send


def test_a_stale_unroll_is_said_with_whose_it_is_how_old_and_what_to_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, sampler = ready(max_lag=2, max_lag_hard=3)
    send(one, sampler)
    send(one, sampler)
    learn(one, 51, version=90)
    counters, peers = Counters(), cast("Any", MagicMock())
    with caplog.at_level(logging.WARNING):
        send_decisions.send(
            one.decide(0.0),
            ledger=one,
            roster=peers,
            replies=peers,
            counters=counters,
            peer_log=PeerLog(RateLimits(BrokerConfig()), counters),
        )
    (line,) = caplog.messages
    assert "sampler a1 (stream 0)" in line
    assert "90 versions" in line
    assert "pacing.max_lag_hard = 3" in line
    assert "2 are stale" in line
    assert counters.spared_lines == 1
