"""The broker: is it reached, does it let us in, do we speak one language, is it the same run?"""

import contextlib
import importlib.metadata
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from broker import endpoints, introduction, wire
from broker.endpoints import EndpointError
from broker.handshake import Handshakes, failure
from broker.keys import Key
from launch import compare, config, keyring
from launch.checkup.finding import BAD, OK, WARN, Finding, Subject

_CONNECTS_S = 3.0
_ANSWERS_S = 5.0
_AGAIN_MS = 200
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_ROLES = ("watcher", "actor", "learner", "evaluator")


@dataclass(slots=True)
class Visit:
    """What came of one."""

    shaken: bool = False  # the handshake succeeded
    failed: str = ""  # why it did not
    refused: str = ""  # the broker's words
    foreign: str = ""  # what it speaks is not ours
    welcome: wire.Welcome | None = None
    run: dict[str, Any] = field(default_factory=dict)  # as its peers must see it
    took_s: float = 0.0  # from HELLO to WELCOME


def broker(subject: Subject) -> Iterator[Finding]:
    """One question after another: each makes sense only after a yes to the one before."""
    address = subject.broker
    if address is None:
        return
    try:
        endpoints.check(address)
        reached = _reached(address)
    except (EndpointError, OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        mend = "is a broker running there, and may this machine connect to it?"
        yield Finding(BAD, "broker", f"{address} is not reached: {words}; {mend}")
        return
    yield Finding(OK, "broker", f"{address} is reached in {1000 * reached:.1f} ms")
    visit = visited(address, _key(subject))
    if visit.failed:
        yield Finding(BAD, "handshake", visit.failed)
    elif not visit.shaken:
        words = f"what listens at {address} is no broker: no ZeroMQ handshake"
        yield Finding(BAD, "handshake", f"{words} within {_ANSWERS_S:g} s")
    else:
        yield Finding(OK, "handshake", "done" + (", encrypted" if _key(subject) else ""))
        yield from _language(visit)
        if visit.welcome is not None:
            yield from _same_run(visit, subject)


def _key(subject: Subject) -> Key | None:
    """The one that was given; else the run's for a watcher, if it is here."""
    if subject.key is not None:
        return keyring.from_file(subject.key, "")
    if subject.run is None or not keyring.path(subject.run, "watcher").exists():
        return None
    return keyring.key(subject.run, "watcher", None)


def _reached(address: str) -> float:
    """Seconds that a plain connection took, or OSError."""
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


def visited(address: str, key: Key | None) -> Visit:
    """Says HELLO as a watcher and takes what comes; leaves with a goodbye."""
    visit, handshakes = Visit(), Handshakes(address, key)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        client = endpoints.dealer(context, key)
        monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED)
        client.connect(address)
        inc = int.from_bytes(os.urandom(8)) >> 1
        role = key.role if key is not None and key.role in _ROLES else "watcher"
        hello = wire.encode(
            wire.Hello(role, "doctor", inc), introduction.encode(introduction.Introduction())
        )
        poller = zmq.Poller()
        poller.register(client, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        deadline, said = time.monotonic() + _ANSWERS_S, 0.0
        while time.monotonic() < deadline and not _answered(visit):
            if visit.shaken and not said:
                said = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    client.send_multipart(hello, zmq.DONTWAIT)
            for ready, _ in poller.poll(_AGAIN_MS):
                if ready is client:
                    _hear(visit, client.recv_multipart(zmq.DONTWAIT))
                    visit.took_s = time.monotonic() - said
                else:
                    _handshake(visit, monitor, handshakes)
        if not visit.shaken and not visit.failed:
            visit.failed = handshakes.line(time.monotonic()).removesuffix("; still trying")
        if visit.welcome is not None:
            with contextlib.suppress(zmq.Again):
                client.send_multipart(wire.encode(wire.Bye(inc, False, "only looked")))
        client.disable_monitor()
        monitor.close(0)
        client.close(200)
    finally:
        context.destroy(linger=200)
    return visit


def _answered(visit: Visit) -> bool:
    return bool(visit.failed or visit.refused or visit.foreign or visit.welcome)


def _handshake(visit: Visit, monitor: Any, handshakes: Handshakes) -> None:
    event = parse_monitor_message(monitor.recv_multipart())
    if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        visit.shaken = True
    else:
        handshakes.failed(failure(event["event"], event["value"]))
        visit.failed = handshakes.fatal()


def _hear(visit: Visit, frames: list[bytes]) -> None:
    try:
        message, buffers = wire.decode(frames)
        if isinstance(message, wire.Welcome):
            run = introduction.unpack(buffers[0]) if buffers else {}
            visit.welcome, visit.run = message, run if isinstance(run, dict) else {}
        elif isinstance(message, wire.Refuse):
            visit.refused = message.text
    except wire.WireError as error:
        visit.foreign = str(error)


def _language(visit: Visit) -> Iterator[Finding]:
    """WELCOME names no release, and need not: the protocol's number is what must fit."""
    here = importlib.metadata.version("headrace")
    if visit.foreign:
        yield Finding(BAD, "protocol", f"another release there: {visit.foreign}")
    elif visit.refused:
        yield Finding(BAD, "protocol", f"refused: {visit.refused}")
    elif visit.welcome is None:
        words = f"it shook hands and gave no answer to HELLO within {_ANSWERS_S:g} s"
        yield Finding(BAD, "protocol", f"{words}; is it a broker, and is it alive?")
    else:
        level = WARN if visit.took_s > 0.5 else OK
        words = f"{wire.PROTOCOL} on both ends (headrace {here} here)"
        yield Finding(level, "protocol", f"{words}, answer in {1000 * visit.took_s:.1f} ms")


def _same_run(visit: Visit, subject: Subject) -> Iterator[Finding]:
    assert visit.welcome is not None
    words = f"the broker runs {visit.welcome.run}"
    if subject.run is None:
        yield Finding(OK, "its run", words)
        return
    try:
        theirs = config.shared(config.from_shared(visit.run))
    except config.ConfigError as error:
        yield Finding(BAD, "its run", f"{words}, by another release: {error}")
        return
    difference = compare.first_difference(theirs, config.shared(subject.run))
    if difference:
        mend = "a learner with this run would be refused; give both the same"
        yield Finding(BAD, "its run", f"{words}, not this one: {difference}; {mend}")
    else:
        yield Finding(OK, "its run", f"{words}, as given")


CHECKS = (broker,)
