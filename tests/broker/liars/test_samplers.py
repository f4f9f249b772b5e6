"""Samplers, watchers and strangers that lie to a broker."""

import logging
import math
import time

import pytest

from headrace.broker import sanitise
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Outcome, Unroll
from tests.broker.liars.talk import FAR, A, B, Broker, Frame, L, W, works


def test_a_samplers_word_about_versions_is_no_law() -> None:
    """After a restart of the broker: most of them decide, and nothing counts as rolled back."""
    one = Broker()
    for n, version in enumerate((FAR, 498, 499, 500, -1)):
        one.sampler(b"%d" % n, 1 + n, version=version)
    assert one.state.credit.version == 0
    one.learner(version=500)
    assert one.state.credit.version == 500
    assert one.ledger.versions.rolled_back == 0
    again = Broker()
    for n in range(3):
        again.sampler(b"%d" % n, 1 + n, version=700)
    again.learner(version=650)  # both lost their memories; the samplers' weights are called 700
    assert again.state.credit.version == 701
    assert again.ledger.versions.rolled_back == 0
    again.sampler(b"late", 9, version=FAR)
    assert again.state.credit.version == 701


def test_what_was_never_started_is_not_abandoned(honest: Broker) -> None:
    honest.hears(A, messages.Bye(1, False, "bye", tuple((0, n, 1 << 50) for n in range(64))))
    honest.hears(A, messages.Bye(1, False, "bye"))
    assert honest.state.outcomes[Outcome.ABANDONED] <= 8  # all credit that there is
    assert honest.state.received <= 8


def test_a_long_goodbye_counts_all(honest: Broker) -> None:
    """More than one message of ranges: the credit stays until the last."""
    limit = honest.state.actors[1].streams[0].limit
    full = tuple((0, 0, 0) for _ in range(64))
    honest.hears(A, messages.Bye(1, False, "bye", full))
    honest.hears(A, messages.Bye(1, False, "bye", ((0, 3, limit),)))
    assert honest.state.outcomes[Outcome.ABANDONED] == limit - 3
    assert honest.state.credit.running == 0


def test_one_connection_is_one_incarnation() -> None:
    one = Broker()
    for inc in range(1, 1000):
        Broker.now += 1.0
        one.sampler(A, inc)
        one.sent.clear()
    assert len(one.server.roster._peers) == len(one.server.roster._routes) == 1


def test_a_live_incarnation_keeps_its_role(honest: Broker) -> None:
    honest.hello(W, messages.Hello("watcher", "w", 1))
    ((route, refuse),) = honest.pump()
    assert (route, refuse.code) == (W, messages.Refusal.IDENTITY)  # type: ignore[attr-defined]
    honest.sampler(B, 50)
    ((route, refuse),) = honest.pump()
    assert (route, refuse.code) == (B, messages.Refusal.IDENTITY)  # type: ignore[attr-defined]
    works(honest, honest.tags())


def test_a_reconnect_works_at_once(honest: Broker) -> None:
    """The same incarnation on another route, while the old one was heard just now."""
    honest.sampler(B, 1)
    assert [type(m) for route, m in honest.pump() if route == B][:1] == [messages.Welcome]
    assert honest.server.joining.moved == 1  # and is seen: it might have been somebody else
    honest.unrolls([3], route=B)
    honest.unrolls([4], route=A)
    assert [type(m) for route, m in honest.pump() if route == A] == [messages.Resync]


def test_who_speaks_as_another_is_not_heard(honest: Broker) -> None:
    honest.sampler(B, 2)
    honest.pump()
    for seq in range(10):
        honest.unrolls([seq], route=B, inc=1)
    honest.hears(B, messages.Bye(1, True, "everybody go home", ((0, 0, 9),)))
    assert honest.errors["identity"] == 11
    assert honest.state.received == 3
    assert honest.state.actors[1].alive


def test_versions_that_cannot_be_make_no_new_figures(honest: Broker) -> None:
    works(honest, honest.tags())
    for seq in range(3, 6):
        honest.unrolls([seq], version_min=FAR - seq, version_max=FAR)
    honest.pump()
    lags = honest.server.counters.lags
    assert 0 <= lags.total <= 1000 * sum(lags.counts)
    honest.unrolls([6], version_min=5, version_max=3)
    assert honest.errors["numbers"] == 1
    assert honest.state.received == 6


def test_no_figure_of_one_spoils_those_of_all(honest: Broker) -> None:
    honest.sampler(B, 2)
    honest.hears(A, messages.Ping((), {"env_steps": 5.0}))
    poison = {"env_steps": math.nan, "x": math.inf, "y" * 100: 1.0, "line\nbreak": 1.0}
    honest.hears(B, messages.Ping((), poison))
    assert honest.server.status()["actors"] == {"behind": 0, "count": 2, "env_steps": 5.0}
    for n in range(5):
        honest.hears(B, messages.Ping((), {f"n{n}-{m}": float(m) for m in range(200)}))
        assert len(honest.server.status()["actors"]) <= sanitise.MOST_NUMBERS + 2
        assert honest.server.status()["actors"]["env_steps"] == 5.0
    honest.hears(L, messages.LearnerPing(50, 0, 0, -1, (), {"loss": math.nan, "version": 3.0}))
    (learner,) = honest.server.status()["learners"]
    assert {name for name in learner if name not in ("name", "silent_s")} == {"version"}
    assert learner["version"] == 3.0


def test_episodes_that_cannot_be_are_left_out(honest: Broker) -> None:
    works(honest, honest.tags())
    honest.unrolls([3], ended=3, episodes=((0, math.nan, 5), (1, 7.0, 6), (2, -math.inf, 7)))
    (deliver,) = honest.told(messages.Deliver)
    assert deliver.episodes == ((1, 7.0, 6),)


def test_one_line_stays_one_line(honest: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hello = messages.Hello("actor", "a\nERROR all is lost\x1b[2J", 7, spaces="s")
    honest.hello(B, hello, HelloPayload(streams=((0, 0, 0, 0, ()),)))
    honest.hears(B, messages.Bye(7, False, "gone\r\nERROR it is" + "x" * 3000))
    honest.hello(W, messages.Hello("king\nERROR of all", "k", 8))
    other = messages.Hello("evaluator", "e", 9, spaces="other")
    honest.hello(W, other, HelloPayload(spaces="a box\nERROR of all" + "x" * 50_000))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) >= 4
    assert all(line.isprintable() and len(line) < 1200 for line in lines)


def test_a_flood_of_lies_is_no_flood_of_lines(
    honest: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    honest.unrolls([1 << 50] * 5000)
    assert honest.errors["credit"] == 5000
    assert len(caplog.records) < 300


def test_an_unroll_larger_than_any_is_dropped(honest: Broker) -> None:
    works(honest, honest.tags())
    big = Unroll(1, 0, 3, 0, 0, 0, 8, 1)
    honest.hears(A, big, b"x" * 50_000)
    assert honest.state.received == 3
    assert honest.errors["size"] == 1
    honest.hears(A, messages.Ping(((0, 3, 4),), {}))
    (pong,) = honest.told(messages.Pong)
    assert pong.missing == ((0, 3, 4),)  # the honest one may come in its place


def test_what_brings_no_buffers_brings_none(honest: Broker) -> None:
    honest.hears(A, messages.Ping((), {}), b"x" * 1000)
    honest.hears(A, messages.Watch(), b"")
    assert honest.errors["size"] == 2
    assert honest.pump() == []


@pytest.mark.slow
def test_an_error_is_shown_with_how_often_and_a_flood_of_them_stays_small(
    honest: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    honest.hears(A, messages.Trouble(1, "environment 3 failed", 2))
    honest.hears(A, messages.Trouble(1, "environment 4 failed", 1))
    (shown,) = honest.server.status()["troubles"]
    assert (shown["role"], shown["name"], shown["count"]) == ("actor", "a1", 3)
    assert shown["text"] == "environment 3 failed"
    assert [record.getMessage() for record in caplog.records].count(
        "actor a1: environment 3 failed"
    ) == 1
    honest.hears(A, messages.Trouble(2, "of another", 1))
    assert honest.errors["identity"] == 1
    for n in range(10_000):
        honest.hears(A, messages.Trouble(1, "x" * (n % 1000) + chr(97 + n % 26), 1 << 53))
        Broker.now += 0.01
    assert len(honest.server.status()["troubles"]) == 20
    assert honest.server.run_status.peer_errors.totals["actor"] < 10**11


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("10.0.0.7", "10.0.0.7:9101"),
        ("::ffff:10.0.0.7", "10.0.0.7:9101"),
        ("fd00::7", "[fd00::7]:9101"),
        ("localhost:0:0:31099", "127.0.0.1:9101"),  # what libzmq says of a pipe
        ("", "127.0.0.1:9101"),
    ],
)
def test_metrics_are_where_the_connection_comes_from(
    monkeypatch: pytest.MonkeyPatch, address: str, target: str
) -> None:
    """A peer names a port and no host: Prometheus is sent nowhere else."""
    monkeypatch.setattr(Frame, "address", address)
    one = Broker()
    one.hello(A, messages.Hello("actor", "a", 1, spaces="s"), HelloPayload(port=9101))
    assert [peer.metrics_address for peer in one.server.roster.everybody()] == [target]


@pytest.mark.parametrize("role", ["actor", "watcher", "evaluator", "learner"])
def test_an_introduction_has_a_size(role: str) -> None:
    one = Broker(streams=4)
    one.hello(A, messages.Hello(role, "x", 7, spaces="s"), HelloPayload(spaces="x" * (17 << 20)))
    assert one.errors["size"] == 1
    assert one.pump() == []


def test_a_floor_that_never_moves_is_remembered_only_so_far() -> None:
    one = Broker()
    one.sampler()
    one.learner(want=1 << 40)
    for seq in range(6000):
        one.pump()
        one.unrolls([seq])
        one.pump()
        tags = one.tags()
        if tags:
            one.hears(L, messages.Done(50, one.state.credit.version + 1, 1 << 40, ((0, 1 << 40),)))
        Broker.now += 0.01
    assert len(one.state.actors[1].streams[0].settled) <= one.state.window + 1 < 6000
    assert one.errors["credit"] > 0


def test_open_ranges_cost_no_more_than_they_may(honest: Broker) -> None:
    began = time.monotonic()
    for _ in range(20):
        honest.hears(A, messages.Ping(tuple((0, n, 1 << 53) for n in range(64)), {}))
        honest.pump()
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    "intro",
    [
        HelloPayload(streams=((0, 0, 1 << 50, 1 << 50, ()),)),
        HelloPayload(streams=tuple((n, 0, 4000, 4000, ((0, 4000),)) for n in range(64))),
        HelloPayload(trained=tuple((n, 0, ((0, 1 << 53),)) for n in range(3))),
    ],
)
def test_an_introduction_names_only_so_much(intro: HelloPayload) -> None:
    with pytest.raises(messages.Malformed):
        hello_payload.decode(hello_payload.encode(intro))


def test_what_a_learner_says_of_the_dead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.ledger.state._MOST_DEAD_SEQS", 1000)
    monkeypatch.setattr("headrace.broker.ledger.state._MOST_DEAD_STREAMS", 50)
    one = Broker()
    for n in range(20):
        Broker.now += 1.0
        one.learner(trained=tuple((100 * n + inc, 0, ((0, 99),)) for inc in range(30)))
        streams = [s for actor in one.state.actors.values() for s in actor.streams.values()]
        assert len(streams) <= 50
        assert sum(len(stream.settled) for stream in streams) <= 1000
