"""How often anybody may say something, and how much of it."""

import itertools
from typing import Any

import pytest

from headrace.broker.protocol import messages
from tests.broker.liars.talk import A, B, Broker, W


def test_an_unroll_over_its_rate_comes_again() -> None:
    one = Broker(peer_messages_s=10.0, max_lag=5)
    one.sampler()
    one.learner()
    Broker.now += 2.0
    one.pump()
    limit = one.state.actors[1].streams[0].limit
    one.unrolls([0] * 9)  # a burst of copies
    one.unrolls(range(limit))
    assert one.errors["rate"] > 0
    missing: tuple[Any, ...] = ((0, 0, 1),)
    for _ in range(20):
        Broker.now += 0.3
        one.hears(A, messages.Ping(((0, 0, limit),), {}))
        for pong in one.told(messages.Pong):
            missing = pong.missing
            one.unrolls([seq for _, lo, hi in missing for seq in range(lo, hi)])
    assert missing == ()
    assert one.state.received == limit


def test_bytes_have_a_rate_too() -> None:
    one = Broker(peer_mb_s=0.001)
    one.sampler()
    one.learner()
    one.pump()
    one.unrolls([0] * 100)
    assert 0 < one.errors["rate"] < 100
    assert one.state.received == 1


def test_all_together_have_a_rate() -> None:
    one = Broker(messages_s=20.0)
    for n in range(10):
        for _ in range(10):
            one.hears(b"%d" % n, messages.Watch())
    assert one.errors["rate"] >= 70


def test_a_sampler_whose_second_hello_got_lost_is_asked_for_it() -> None:
    """The first says that it is here, the second that its environments are made; a beat has come
    after both. Without that it would wait for credit for ever."""
    one = Broker(peers=4)  # which is also how many HELLOs a second all may say
    one.hello(A, messages.Hello("actor", "a1", 1))
    one.learner()
    one.pump()
    for n in range(200):
        one.hello(b"%d" % n, messages.Hello("watcher", "w", 200 + n))
    one.sampler()
    one.pump()
    assert one.errors["hello"] > 100
    assert 1 not in one.state.actors
    Broker.now += 2.0
    one.hears(A, messages.Ping((), {}))
    (resync,) = one.told(messages.Resync)
    assert resync == messages.Resync(9)
    one.sampler()
    assert len(one.told(messages.Limit)) == 1


def test_strangers_are_answered_now_and_then() -> None:
    one = Broker()
    for _ in range(1000):
        one.hears(b"stranger", messages.Watch())
    assert len(one.pump()) == 1
    assert one.errors["unknown"] == 1000
    Broker.now += 0.2
    one.hears(b"stranger", messages.Watch())
    assert len(one.pump()) == 1


def test_strangers_leave_nothing_behind() -> None:
    one = Broker()
    for n in range(20_000):
        one.hears(b"%d" % n, messages.Watch())
        one.sent.clear()
    assert len(one.server.limits._strangers) <= 4096


def test_hello_has_a_rate() -> None:
    one = Broker()
    for _ in range(100):
        one.sampler()
    assert len(one.told(messages.Welcome)) == 10
    Broker.now += 1.0
    for _ in range(100):
        one.sampler()
    assert len(one.told(messages.Welcome)) == 5
    assert one.errors["hello"] == 185


def test_a_full_house_says_so() -> None:
    one = Broker(peers=2, streams=3)
    one.sampler(A, 1)
    one.sampler(B, 2)
    one.hello(W, messages.Hello("watcher", "w", 3))
    (refuse,) = one.told(messages.Refuse)
    assert "broker.peers" in refuse.text
    one.sampler(b"again", 2)  # whoever is known has a place
    assert len(one.told(messages.Welcome)) == 1
    one.sampler(A, 1, streams=4)
    (refuse,) = one.told(messages.Refuse)
    assert "broker.streams" in refuse.text


def test_a_flood_of_watch_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Broker()
    one.hello(W, messages.Hello("watcher", "w", 3))
    looks = itertools.count()
    sums = one.server.roster.sums
    monkeypatch.setattr(one.server.roster, "sums", lambda: (next(looks), sums())[1])
    for _ in range(100):
        one.hears(W, messages.Watch())
    assert len(one.told(messages.Status)) == 100
    assert next(looks) == 1
