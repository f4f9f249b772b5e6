"""A learner rank's connections with several brokers; nothing is sent."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from headrace.broker.journal.journal import Journal
from headrace.broker.peers import learner_ends
from headrace.broker.peers.inbox import Key
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.learner_ends import LearnerEnds
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.bundles import bytes_of
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import (
    Deliver,
    Done,
    Hello,
    LearnerPing,
    LearnerPong,
    Message,
    Nack,
    Welcome,
    decode,
)
from headrace.broker.transport.link import RefusedError

BATCH, BATCHES = 4, 3


class Rank:
    """A rank of a learner with `count` brokers; what it says to each is kept."""

    def __init__(self, count: int, *, rank: int = 0, world: int = 1) -> None:
        self.held: list[Key] = []
        self.ends = LearnerEnds(
            [
                partial(
                    LearnerEnd, f"ipc:///b{at}", Hello("learner", "l", 7, rank=rank), HelloPayload()
                )
                for at in range(count)
            ],
            rank=rank,
            world=world,
            batch=BATCH,
            room=lambda: BATCHES * BATCH // world - len(self.held),
            accept=self._accept,
            journal=Journal(None, ""),
            context=cast(Any, None),
        )
        self.said: list[list[Message]] = [[] for _ in range(count)]
        for at, end in enumerate(self.ends.ends):
            end.link._mail = cast(Any, _Wire(self.said[at]))
        self.ends.begins(0, [])

    def welcomed(self, at: int, version: int = 0, streams: int = 0, inc: int = 0) -> None:
        end, welcome = self.ends.ends[at], Welcome(inc or at, "run", 1.0, 10.0, "", version)
        end.link.welcome = welcome
        end.on_welcome(welcome, ())
        self.plays(at, streams)

    def plays(self, at: int, streams: int) -> None:
        self.ends.ends[at].handle(LearnerPong(1, 0, 0, streams), ())

    def silent(self, at: int) -> None:
        self.ends.ends[at].link.welcome = None

    def given(self, at: int, seq: int, inc: int = 1) -> None:
        deliver = Deliver(seq, 1, "a", inc, 0, seq, 0, 0, 0, 1, 0, 0, ())
        self.ends.ends[at].handle(deliver, ())

    def pings(self, at: int) -> LearnerPing:
        frames = self.ends.ends[at].beat_frames()[0]
        message, _ = decode([bytes_of(frame) for frame in frames])
        assert isinstance(message, LearnerPing)
        return message

    def shares(self) -> list[int | None]:
        return [self.pings(at).share for at in range(len(self.said))]

    def _accept(self, message: Deliver, _: Sequence[Any]) -> Objection | None:
        self.held.append((message.inc, message.stream, message.seq))
        return None


class _Wire:
    def __init__(self, said: list[Message]) -> None:
        self.said = said

    def send(self, frames: Sequence[Any]) -> bool:
        self.said.append(decode([bytes_of(frame) for frame in frames])[0])
        return True


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_ends, "_PATIENCE_S", 1e9)


def test_each_broker_hears_of_its_own_unrolls() -> None:
    one = Rank(2)
    one.welcomed(0, streams=1)
    one.welcomed(1, streams=1)
    one.given(0, 5, inc=1)
    one.given(1, 5, inc=2)
    one.given(1, 6, inc=2)
    one.ends.trained([(1, 0, 5), (2, 0, 6)], version=1)
    one.ends.reject([(2, 0, 5)], Objection("step", "why"))
    first, second = ([m for m in said if isinstance(m, Done)] for said in one.said)
    assert [(m.version, m.tags) for m in first] == [(1, ((5, 6),))]
    assert [(m.version, m.tags) for m in second] == [(1, ((6, 7),))]
    assert [m.tags for m in one.said[1] if isinstance(m, Nack)] == [((5, 6),)]
    assert not [m for m in one.said[0] if isinstance(m, Nack)]
    ends = one.ends
    assert (ends.delivered, ends.trained_unrolls, ends.held, ends.unaccounted()) == (3, 2, 0, 0)
    assert ends.objections["step"] == ends.objections.total() == 1


def test_a_broker_that_had_no_part_hears_of_the_version_too() -> None:
    one = Rank(2)
    one.welcomed(0, streams=1)
    one.welcomed(1)
    one.given(0, 5)
    one.ends.trained([(1, 0, 5)], version=9)
    (done,) = [m for m in one.said[1] if isinstance(m, Done)]
    assert (done.version, done.tags) == (9, ())


def test_it_continues_when_all_have_answered_or_the_rest_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Rank(3)
    assert one.ends.welcome_version is None
    one.welcomed(0, version=4)
    one.welcomed(2, version=6)
    assert one.ends.welcome_version is None
    monkeypatch.setattr(learner_ends, "_PATIENCE_S", 0.0)
    assert one.ends.welcome_version == 6
    assert one.ends.unheard() == "ipc:///b1"
    monkeypatch.setattr(learner_ends, "_PATIENCE_S", 1e9)
    one.welcomed(1, version=5)
    assert one.ends.welcome_version == 6
    assert one.ends.unheard() == ""


def test_rank_0_tells_each_broker_its_share(caplog: pytest.LogCaptureFixture) -> None:
    one = Rank(2)
    one.welcomed(0, streams=9)
    assert one.shares() == [None, None]  # the other one may answer yet
    one.welcomed(1)
    assert one.shares() == [4, 0]
    one.plays(1, 3)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert one.shares() == [3, 1]
    assert caplog.messages == ["of each step: 3 from ipc:///b0, 1 from ipc:///b1"]
    one.silent(0)
    assert one.shares()[1] == 4
    assert Rank(2, rank=1).shares() == [None, None]
    assert Rank(1).shares() == [None]


def test_two_names_of_one_broker_are_found_out() -> None:
    one = Rank(2)
    one.welcomed(0, inc=5)
    one.welcomed(1, inc=6)
    one.pings(0)
    one.welcomed(1, inc=5)
    with pytest.raises(RefusedError, match="ipc:///b0 and ipc:///b1 are one broker"):
        one.pings(0)


def test_no_broker_takes_the_room_of_another() -> None:
    """Also not while it is the only one: what is offered cannot be taken back."""
    one = Rank(2)
    one.welcomed(0, streams=1)
    assert one.pings(0).want == 6
    one.welcomed(1, streams=1)
    assert [one.pings(at).want for at in (0, 1)] == [6, 6]
    for seq in range(6):
        one.given(0, seq)
    assert [one.pings(at).want for at in (0, 1)] == [6, 6]  # counted from the first on
    one.ends.trained([(1, 0, seq) for seq in range(4)], version=1)
    del one.held[:4]
    assert [one.pings(at).want for at in (0, 1)] == [10, 6]
    one.silent(1)
    assert one.pings(0).want == 10
    for seq in range(6, 12):
        one.given(0, seq)
    one.welcomed(1, streams=1)
    assert one.pings(1).want == 6
    assert (one.ends.given_back, one.ends.unaccounted()) == (2, 0)  # two more than were wanted


def test_a_lone_broker_has_all_the_room() -> None:
    one = Rank(1)
    assert one.pings(0).want == 12
    one.given(0, 0)
    assert one.pings(0).want == 12
    assert one.ends.held == 1


def test_what_was_trained_is_remembered_whoever_brought_it() -> None:
    one = Rank(2)
    one.ends.begins(3, [(1, 0, [[0, 4]]), (2, 0, [[0, 2]])])
    one.welcomed(0, streams=1)
    one.welcomed(1, streams=1)
    one.given(0, 4, inc=1)
    one.given(1, 2, inc=2)
    one.given(1, 3, inc=2)
    one.ends.trained([(1, 0, 4), (2, 0, 2), (2, 0, 3)], version=4)
    assert sorted(one.ends.windows()) == [(1, 0, ((0, 5),)), (2, 0, ((0, 4),))]
    one.given(1, 1, inc=1)  # by the other broker: also then it is not trained twice
    assert one.ends.duplicates == 1
