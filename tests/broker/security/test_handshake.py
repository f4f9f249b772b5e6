"""What a peer makes of handshakes that fail."""

import re

import pytest
import zmq

from headrace.broker.security import keys
from headrace.broker.security.handshake import Failure, Handshakes, failure

KEY = keys.make("actor", "node7", keys.make("broker").public)._replace(path="/k/actor-node7.key")
MISMATCH = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002)


def handshakes(*failures: Failure, key: keys.Key | None = KEY) -> Handshakes:
    made = Handshakes("tcp://b:1", key)
    for each in failures:
        made.failed(each)
    return made


def test_what_libzmq_tells_is_one_of_four() -> None:
    assert failure(zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400) is Failure.REFUSED
    assert failure(zmq.EVENT_HANDSHAKE_FAILED_AUTH, 500) is Failure.LATER
    assert failure(*MISMATCH) is Failure.MISMATCH
    assert failure(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000001) is Failure.HUNG_UP
    assert failure(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32) is Failure.HUNG_UP


@pytest.mark.parametrize(
    ("what", "key", "words"),
    [
        (Failure.REFUSED, KEY, "refused the key in /k/actor-node7.key.* no such actor-node7.pub"),
        (Failure.MISMATCH, KEY, "works without keys, and we have the key in /k/actor-node7.key"),
        (Failure.MISMATCH, None, "lets in only who has a key; give one with --key"),
    ],
)
def test_one_that_was_never_let_in_ends(what: Failure, key: keys.Key | None, words: str) -> None:
    made = handshakes(what, key=key)
    assert re.search(words, made.fatal())
    assert "\n" not in made.fatal()


@pytest.mark.parametrize("what", list(Failure))
@pytest.mark.parametrize("key", [KEY, None])
def test_one_that_was_let_in_goes_on(what: Failure, key: keys.Key | None) -> None:
    made = handshakes(key=key)
    made.succeeded()
    for _ in range(100):
        made.failed(what)
        assert made.fatal() == ""
    assert made.line(0.0).endswith("; still trying")


@pytest.mark.parametrize("what", [Failure.LATER, Failure.HUNG_UP])
def test_what_may_pass_ends_nobody(what: Failure) -> None:
    made = handshakes(*[what] * 100)
    assert made.fatal() == ""
    assert made.line(0.0)


def test_one_broken_handshake_is_an_accident_three_are_not() -> None:
    made = handshakes()
    for _ in range(2):
        assert not made.failed(Failure.HUNG_UP)
        assert made.line(0.0) == ""
    assert made.failed(Failure.HUNG_UP)
    assert "public key in /k/actor-node7.key may be another broker's" in made.line(0.0)


def test_the_same_is_said_once_a_minute() -> None:
    made = handshakes(Failure.LATER)
    assert [bool(made.line(now)) for now in (0.0, 1.0, 59.0, 61.0, 100.0)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    made.succeeded()
    assert made.line(101.0) == ""
    made.failed(Failure.LATER)
    assert made.line(101.0)


@pytest.mark.parametrize(
    ("what", "longest"),
    [
        (Failure.REFUSED, 30.0),
        (Failure.MISMATCH, 30.0),
        (Failure.LATER, 5.0),
        (Failure.HUNG_UP, 5.0),
    ],
)
def test_it_stays_away_longer_and_longer(what: Failure, longest: float) -> None:
    made = handshakes()
    assert made.pause_s() == 0.0
    pauses = []
    for _ in range(20):
        made.failed(what)
        pauses.append(made.pause_s())
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, longest)
    made.succeeded()
    assert made.pause_s() == 0.0
