"""The doctor's checks of the broker: reached, authorised, same protocol, same run."""

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from headrace.broker import sanitise
from headrace.broker.protocol import hello_payload, messages, releases
from headrace.broker.release import release
from headrace.broker.security.handshake import Handshakes, failure
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints, several
from headrace.broker.transport.endpoints import EndpointError
from headrace.launch.config import differences, keyring, run_file, shared_run
from headrace.launch.doctor.finding import BAD, OK, WARN, Finding, Subject
from headrace.launch.plan.far_line import Line

_CONNECTS_S = 3.0
_ANSWERS_S = 5.0
_STATUS_S = 2.0
_AGAIN_MS = 200
_MOST_SKEW_S = 1.0
_MOST_NUMBER = 1e9  # of what else it says
_MOST_CLOCK = 1e11  # seconds since 1970; larger values are not a time
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_ROLES = ("watcher", "actor", "evaluator")


@dataclass(slots=True)
class BrokerVisit:
    """Collects what one connection to the broker found."""

    handshake_done: bool = False  # the handshake succeeded
    failed: str = ""  # why it did not
    refused: str = ""  # the broker's words
    foreign: str = ""  # why its messages cannot be read
    welcome: messages.Welcome | None = None
    run: dict[str, Any] = field(default_factory=dict)  # the keys that all peers share
    took_s: float = 0.0  # from HELLO to WELCOME
    asked_at: float = 0.0  # for its status, by our wall clock; 0 = not yet
    ahead_s: float = math.nan  # its wall clock minus ours; NaN = it did not say
    release: str = ""  # that runs there; "" = it did not say
    streams: int = 0  # of its samplers
    window: int = 0  # unrolls that may be under way
    unroll_s: float = 0.0  # from its credit to its arrival, in the mean; 0 = none came


def brokers(subject: Subject) -> Iterator[Finding]:
    """Checks each of the run's brokers."""
    try:
        for address in several.addresses(subject.broker) if subject.broker is not None else ():
            yield from broker(subject, address)
    except EndpointError as error:
        yield Finding(BAD, "broker", str(error))


def broker(subject: Subject, address: str) -> Iterator[Finding]:
    """Checks a broker step by step: each check needs the one before to succeed."""
    try:
        reached = _connect_s(address)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        mend = "is a broker running there, and may this machine connect to it?"
        yield Finding(BAD, "broker", f"{address} is not reached: {words}; {mend}")
        return
    yield Finding(OK, "broker", f"{address} is reached in {1000 * reached:.1f} ms")
    visit = visit_broker(address, _key(subject))
    if visit.failed:
        yield Finding(BAD, "handshake", visit.failed)
    elif not visit.handshake_done:
        words = f"what listens at {address} is no broker: no ZeroMQ handshake"
        yield Finding(BAD, "handshake", f"{words} within {_ANSWERS_S:g} s")
    else:
        yield Finding(OK, "handshake", "done" + (", encrypted" if _key(subject) else ""))
        yield from _protocol(visit)
        if visit.welcome is not None:
            yield from _release_and_clock(visit)
            yield from _line(visit, reached)
            yield from _same_run(visit, subject)


def _key(subject: Subject) -> Key | None:
    """Returns the given key, else the run's key for a watcher if its file is here."""
    if subject.key is not None:
        return keyring.from_file(subject.key, "")
    if subject.run is None or not keyring.path(subject.run, "watcher").exists():
        return None
    return keyring.key(subject.run, "watcher", None)


def _connect_s(address: str) -> float:
    """Returns the seconds that a plain connection took; raises OSError if there is none."""
    scheme, _, rest = address.partition("://")
    before = time.monotonic()
    if scheme == "ipc":
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(_CONNECTS_S)
            trial.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECTS_S).close()
    return time.monotonic() - before


def visit_broker(address: str, key: Key | None) -> BrokerVisit:
    """Sends HELLO as a watcher, collects the answers, and leaves with a BYE."""
    visit, handshakes = BrokerVisit(), Handshakes(address, key)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        client = endpoints.dealer(context, key)
        monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED)
        client.connect(address)
        inc = int.from_bytes(os.urandom(8)) >> 1
        role = key.role if key is not None and key.role in _ROLES else "watcher"
        hello = messages.encode(
            messages.Hello(role, "doctor", inc), hello_payload.encode(hello_payload.HelloPayload())
        )
        poller = zmq.Poller()
        poller.register(client, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        deadline, said_at = time.monotonic() + _ANSWERS_S, 0.0
        while time.monotonic() < deadline and not _answered(visit):
            if visit.welcome is not None and not visit.asked_at:
                visit.asked_at = time.time()
                deadline = time.monotonic() + _STATUS_S
                with contextlib.suppress(zmq.Again):
                    client.send_multipart(messages.encode(messages.Watch()), zmq.DONTWAIT)
            if visit.handshake_done and not said_at:
                said_at = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    client.send_multipart(hello, zmq.DONTWAIT)
            for ready, _ in poller.poll(_AGAIN_MS):
                if ready is client:
                    _receive(visit, client.recv_multipart(zmq.DONTWAIT), said_at)
                else:
                    _handshake(visit, monitor, handshakes)
        if not visit.handshake_done and not visit.failed:
            visit.failed = handshakes.line(time.monotonic()).removesuffix("; still trying")
        if visit.welcome is not None:
            with contextlib.suppress(zmq.Again):
                client.send_multipart(messages.encode(messages.Bye(inc, False, "only looked")))
        client.disable_monitor()
        monitor.close(0)
        client.close(200)
    finally:
        context.destroy(linger=200)
    return visit


def _answered(visit: BrokerVisit) -> bool:
    return bool(visit.failed or visit.refused or visit.foreign or visit.release)


def _handshake(visit: BrokerVisit, monitor: Any, handshakes: Handshakes) -> None:
    event = parse_monitor_message(monitor.recv_multipart())
    if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        visit.handshake_done = True
    else:
        handshakes.failed(failure(event["event"], event["value"]))
        visit.failed = handshakes.fatal()


def _receive(visit: BrokerVisit, frames: list[bytes], said_at: float) -> None:
    try:
        message, buffers = messages.decode(frames)
        if isinstance(message, messages.Welcome):
            run = hello_payload.unpack(buffers[0]) if buffers else {}
            visit.welcome, visit.run = message, run if isinstance(run, dict) else {}
            visit.took_s = time.monotonic() - said_at
        elif isinstance(message, messages.Status) and buffers:
            _status(visit, hello_payload.unpack(buffers[0]))
        elif isinstance(message, messages.Refuse):
            visit.refused = message.text
    except messages.WireError as error:
        visit.foreign = str(error)


def _status(visit: BrokerVisit, status: Any) -> None:
    """Reads release and clock; the clock is compared with the middle between question and
    answer."""
    found = status if isinstance(status, dict) else {}
    clock = found.get("clock")
    if isinstance(clock, float) and 0.0 < clock < _MOST_CLOCK:
        visit.ahead_s = clock - (visit.asked_at + time.time()) / 2
    visit.release = sanitise.words(str(found.get("release", "an older one")))
    visit.streams, visit.window = int(_number(found, "streams")), int(_number(found, "window"))
    visit.unroll_s = _number(found, "unroll_s")


def _number(found: dict[str, Any], name: str) -> float:
    """Returns what the broker says; 0 = nothing that can be."""
    value = found.get(name)
    return value if isinstance(value, int | float) and 0 <= value < _MOST_NUMBER else 0.0


def _protocol(visit: BrokerVisit) -> Iterator[Finding]:
    """Compares the protocol numbers. WELCOME names no release, and the number alone must match."""
    if visit.foreign:
        yield Finding(BAD, "protocol", f"another release there: {visit.foreign}")
    elif visit.refused:
        yield Finding(BAD, "protocol", f"refused: {visit.refused}")
    elif visit.welcome is None:
        words = f"it shook hands and gave no answer to HELLO within {_ANSWERS_S:g} s"
        yield Finding(BAD, "protocol", f"{words}; is it a broker, and is it alive?")
    else:
        level = WARN if visit.took_s > 0.5 else OK
        words = f"{releases.PROTOCOL} on both ends, answer in {1000 * visit.took_s:.1f} ms"
        yield Finding(level, "protocol", words)


def _release_and_clock(visit: BrokerVisit) -> Iterator[Finding]:
    """Compares the broker's release and clock with ours."""
    if visit.release == release():
        yield Finding(OK, "release", f"headrace {release()} on both ends")
    elif visit.release:
        words = f"headrace {release()} here, {visit.release} there; give both the same"
        yield Finding(WARN, "release", words)
    if abs(visit.ahead_s) <= _MOST_SKEW_S:
        words = f"within {1000 * abs(visit.ahead_s):.0f} ms of the broker's"
        yield Finding(OK, "its clock", words)
    elif math.isfinite(visit.ahead_s):
        way = "ahead of" if visit.ahead_s > 0 else "behind"
        words = (
            f"the broker's is {abs(visit.ahead_s):,.1f} s {way} ours: no run depends on it, but"
            " logs and metrics will not fit together; let NTP set both"
        )
        yield Finding(WARN, "its clock", words)


def _line(visit: BrokerVisit, round_trip_s: float) -> Iterator[Finding]:
    """Says whether pacing lets so much be under way that a line like ours keeps nobody waiting."""
    if not (visit.streams and visit.window and visit.unroll_s):
        return
    needed = Line(round_trip_s).places(visit.streams, visit.unroll_s)
    words = (
        f"a round trip of {1000 * round_trip_s:.3g} ms to unrolls of {1000 * visit.unroll_s:.3g}"
        f" ms: {visit.streams} streams need {needed} places for unrolls, and have {visit.window}"
    )
    if needed <= max(visit.window, visit.streams):
        yield Finding(OK, "line", words)
    else:
        more = math.ceil(10 * needed / visit.window) / 10
        mend = f"{more:g} times pacing.batch_unrolls, or pacing.max_lag, for samplers from here"
        yield Finding(WARN, "line", f"{words}; {mend}")


def _same_run(visit: BrokerVisit, subject: Subject) -> Iterator[Finding]:
    assert visit.welcome is not None
    words = f"the broker runs {visit.welcome.run}"
    if subject.run is None:
        yield Finding(OK, "its run", words)
        return
    try:
        theirs = shared_run.shared(shared_run.from_shared(visit.run))
    except run_file.ConfigError as error:
        yield Finding(BAD, "its run", f"{words}, by another release: {error}")
        return
    difference = differences.first_difference(theirs, shared_run.shared(subject.run))
    if difference:
        mend = "a learner with this run would be refused; give both the same"
        yield Finding(BAD, "its run", f"{words}, not this one: {difference}; {mend}")
    else:
        yield Finding(OK, "its run", f"{words}, as given")


CHECKS = (brokers,)
