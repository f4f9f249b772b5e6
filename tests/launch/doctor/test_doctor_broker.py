"""`headrace doctor` asks a broker: is it reached, does it let us in, is it ours?"""

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

from headrace.broker.protocol import hello_payload, messages
from headrace.broker.release import release
from headrace.launch.config import run_file, shared_run
from headrace.launch.doctor import broker
from headrace.launch.doctor.finding import BAD, OK, WARN, Finding, Subject
from tests.launch.doctor.test_doctor import only, subject


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_CONNECTS_S", 1.0)
    monkeypatch.setattr(broker, "_STATUS_S", 0.3)


class FakeBroker:
    """Answers each HELLO with what it was given, and each WATCH with this status, if any."""

    def __init__(
        self,
        answer: Callable[[], list[Any]] | None,
        status: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._answer = answer
        self._status = status
        self.heard: list[messages.Message] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            if self._router.poll(20):
                route, *frames = self._router.recv_multipart()
                message, _ = messages.decode(frames)
                self.heard.append(message)
                if self._answer is not None and isinstance(message, messages.Hello):
                    self._router.send_multipart([route, *self._answer()])
                if self._status is not None and isinstance(message, messages.Watch):
                    body = hello_payload.pack(self._status())
                    self._router.send_multipart([route, *messages.encode(messages.Status(), body)])

    def __enter__(self) -> "FakeBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(0)


def welcome(*sets: str) -> list[Any]:
    theirs = run_file.load("cartpole", sets)
    message = messages.Welcome(7, theirs.run.name, 1.0, 10.0, "tcp://127.0.0.1:1", 0)
    return messages.encode(message, msgspec.msgpack.encode(shared_run.for_peers(theirs)))


def levels(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in found]


def test_a_broker_that_is_well() -> None:
    with FakeBroker(welcome) as there:
        found = list(broker.brokers(subject(broker=there.address)))
        assert levels(found) == [
            (OK, "broker"),
            (OK, "handshake"),
            (OK, "protocol"),
            (OK, "its run"),
        ]
        deadline = time.monotonic() + 10
        while len(there.heard) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [type(message) for message in there.heard] == [
            messages.Hello,
            messages.Watch,
            messages.Bye,
        ]
        assert only_last(list(broker.brokers(Subject(broker=there.address)))).words == (
            "the broker runs cartpole"
        )


def test_each_of_several_brokers_is_looked_at() -> None:
    with FakeBroker(welcome) as one, FakeBroker(lambda: welcome("algorithm.gamma=0.9")) as other:
        found = list(broker.brokers(subject(broker=f"{one.address},{other.address}")))
    well = [(OK, "broker"), (OK, "handshake"), (OK, "protocol"), (OK, "its run")]
    assert levels(found) == [*well, *well[:3], (BAD, "its run")]


@pytest.mark.parametrize("address", ["here", "tcp://a:1,", "tcp://a:1,tcp://a:1"])
def test_a_list_of_addresses_with_a_mistake(address: str) -> None:
    found = only(broker.brokers, Subject(broker=address))
    assert found.level == BAD and found.what == "broker"


def only_last(found: list[Finding]) -> Finding:
    return found[-1]


@pytest.mark.parametrize(
    ("status", "level", "what", "words"),
    [
        ({"release": release()}, OK, "release", f"headrace {release()} on both ends"),
        ({"release": "9.9.9"}, WARN, "release", "9.9.9 there; give both the same"),
        ({"release": "9\nbad  x"}, WARN, "release", "9?bad  x there"),
        ({}, WARN, "release", "an older one there"),
        ({"clock": 0.0}, OK, "its clock", "ms of the broker's"),
        ({"clock": 90.0}, WARN, "its clock", "s ahead of ours"),
        ({"clock": -3600.0}, WARN, "its clock", "s behind ours"),
    ],
)
def test_what_it_says_of_itself(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], level: str, what: str, words: str
) -> None:
    def now() -> dict[str, Any]:
        return {"clock": time.time() + status["clock"]} if "clock" in status else status

    monkeypatch.setattr(broker, "_STATUS_S", 20.0)
    with FakeBroker(welcome, now) as there:
        found = list(broker.brokers(subject(broker=there.address)))
    (one,) = [one for one in found if one.what == what]
    assert one.level == level and words in one.words and "\n" not in one.words


@pytest.mark.parametrize(
    ("window", "unroll_s", "level", "words"),
    [
        (64, 0.2, OK, "16 streams need 32 places for unrolls, and have 64"),
        (32, 0.2, OK, "a round trip of 100 ms to unrolls of 200 ms"),
        (16, 0.2, WARN, "have 16; 2 times pacing.batch_unrolls, or pacing.max_lag,"),
        (16, 2.0, WARN, "need 18 places for unrolls, and have 16; 1.2 times"),
    ],
)
def test_a_line_that_wants_more_places(
    monkeypatch: pytest.MonkeyPatch, window: int, unroll_s: float, level: str, words: str
) -> None:
    status = {"release": release(), "streams": 16, "window": window, "unroll_s": unroll_s}
    monkeypatch.setattr(broker, "_connect_s", lambda _: 0.1)
    monkeypatch.setattr(broker, "_STATUS_S", 20.0)
    with FakeBroker(welcome, lambda: status) as there:
        found = list(broker.brokers(subject(broker=there.address)))
    (one,) = [one for one in found if one.what == "line"]
    assert one.level == level and words in one.words


@pytest.mark.parametrize("wrong", ["many", None, -1, math.nan, 1e300])
@pytest.mark.parametrize("name", ["streams", "window", "unroll_s"])
def test_numbers_that_are_none(name: str, wrong: Any) -> None:
    status = {"release": release(), "streams": 16, "window": 8, "unroll_s": 1.0, name: wrong}
    with FakeBroker(welcome, lambda: status) as there:
        found = list(broker.brokers(subject(broker=there.address)))
    assert "line" not in [one.what for one in found]


@pytest.mark.parametrize("clock", [math.nan, math.inf, 1e308, "noon", None])
def test_a_clock_that_is_none(clock: Any) -> None:
    with FakeBroker(welcome, lambda: {"release": release(), "clock": clock}) as there:
        found = list(broker.brokers(subject(broker=there.address)))
    assert "its clock" not in [one.what for one in found]
    assert found[-1].what == "its run"


def test_another_run_there() -> None:
    with FakeBroker(lambda: welcome("algorithm.gamma=0.9")) as there:
        found = only_last(list(broker.brokers(subject(broker=there.address))))
    assert (found.level, found.what) == (BAD, "its run")
    assert "algorithm.gamma: 0.9 there, 0.99 here" in found.words


def test_a_run_of_another_release_there() -> None:
    def strange() -> list[Any]:
        message = messages.Welcome(7, "cartpole", 1.0, 10.0, "tcp://127.0.0.1:1", 0)
        return messages.encode(message, msgspec.msgpack.encode({"run": {"name": "x"}, "news": {}}))

    with FakeBroker(strange) as there:
        found = only_last(list(broker.brokers(subject(broker=there.address))))
    assert found.level == BAD and "by another release" in found.words


def test_a_refusal_and_another_protocol() -> None:
    with FakeBroker(lambda: messages.encode(messages.Refuse(0, "we are full"))) as there:
        found = only_last(list(broker.brokers(subject(broker=there.address))))
    assert found == (BAD, "protocol", "refused: we are full")

    def other() -> list[Any]:
        first, *rest = welcome()
        return [first[:2] + bytes([first[2] + 1]) + first[3:], *rest]

    with FakeBroker(other) as there:
        found = only_last(list(broker.brokers(subject(broker=there.address))))
    assert found.level == BAD and "upgrade the older side" in found.words


def test_a_broker_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_ANSWERS_S", 0.5)
    with FakeBroker(None) as there:
        found = only_last(list(broker.brokers(subject(broker=there.address))))
    assert found.level == BAD and "no answer to HELLO within 0.5 s" in found.words


def test_something_else_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_ANSWERS_S", 0.5)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        found = list(broker.brokers(Subject(broker=f"tcp://127.0.0.1:{deaf.getsockname()[1]}")))
    assert levels(found) == [(OK, "broker"), (BAD, "handshake")]
    assert "is no broker" in found[-1].words


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://no.such.host.invalid:5755", "ipc:///none/b"]
)
def test_a_broker_that_is_not_there(address: str) -> None:
    found = only(broker.brokers, Subject(broker=address))
    assert found.level == BAD and "is not reached" in found.words and address in found.words
