"""Addresses, and sockets with every option that MUST be set, in one place."""

import errno
import ipaddress
import re
import socket as unix
from pathlib import Path

import zmq

from headrace.broker.errors import UserError
from headrace.broker.protocol.messages import MAX_BUFFER_BYTES
from headrace.broker.security import curve
from headrace.broker.security.keys import Key

# Messages queued for one peer before a send says "no room": more than any window of ours.
_HIGH_WATER = 1024
# A name, an address, an interface, or * for all: what ZeroMQ takes, and no longer than DNS does.
_HOST = re.compile(r"[!-~]{1,253}")
_SUBSCRIPTION_BYTES = 1024
# Announcements: of many that wait only the newest matters, and a lost one is repeated by a beat.
_ANNOUNCED = 64
# A peer that vanished without closing (power, cable) is noticed by TCP, so that its descriptor is
# freed. Not by ZeroMQ's own heartbeats: libzmq 4.3.5 aborts the process when their timer fires on a
# connection whose peer died while our queue was full (tests/broker/transport/test_endpoints.py).
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 10, 5, 3
# While something of ours is not acknowledged TCP sends no keepalive, and repeats that for a quarter
# of an hour: such a connection ends after the same time as one on which nothing is under way.
_UNHEARD_MS = 1000 * (_KEEPALIVE_IDLE_S + _KEEPALIVE_INTERVAL_S * _KEEPALIVE_COUNT)
# A host that is gone does not refuse, and TCP would try it for two minutes. Each attempt looks
# the name up again: the broker may have moved. Long enough for a lost packet on a long line.
_CONNECT_MS = 2000


class EndpointError(UserError, ValueError):
    """Says which address cannot be used, and why."""


def check(endpoint: str) -> str:
    """Returns the address if it is tcp://host:port or ipc:///path; raises EndpointError
    otherwise."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest and rest.isprintable():
        if len(rest) > 100:
            raise EndpointError(f"{endpoint}: an ipc path has at most 100 characters")
        return endpoint
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not _HOST.fullmatch(host) or not _port(port):
        raise EndpointError(f"{endpoint!r} is no address; write tcp://host:port or ipc:///path")
    return endpoint


def _port(text: str) -> bool:
    return text == "*" or (
        # ASCII digits only, and few: int() refuses a very long text.
        len(text) <= 5 and text.isascii() and text.isdecimal() and int(text) < 65536
    )


def check_bind(endpoint: str, *, guarded: bool) -> str:
    """Returns the address; raises EndpointError when other machines can reach it and it is not
    `guarded` (by keys, or by the user's word that none are needed)."""
    check(endpoint)
    if guarded or stays_here(endpoint):
        return endpoint
    raise EndpointError(
        f"listening on {endpoint} without keys would let anybody who reaches it take part; make"
        " keys (headrace keygen keys) and set security.curve = true, or say --insecure"
    )


def stays_here(endpoint: str) -> bool:
    host = endpoint.partition("://")[2].rpartition(":")[0]
    return endpoint.startswith("ipc://") or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach a host, as it stands in an address; a name, an
    interface or all of them may be reachable from other machines."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _answers(path: str) -> bool:
    """Tells whether a process listens at the path. A file that a dead process left does not
    answer."""
    with unix.socket(unix.AF_UNIX, unix.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def announce_endpoint(bind: str) -> str:
    """Returns the default address for weight announcements: the next port or path."""
    if bind.startswith("ipc://"):
        return bind + ".pub"
    host, _, port = bind.rpartition(":")
    return f"{host}:{'*' if port in ('*', '0') else int(port) + 1}"


def relay_address(shelf: Path) -> str:
    """Returns where the relay that fills a shelf hears the samplers of its machine."""
    return f"ipc://{shelf}.relay"


def seen_from(broker: str, announce: str) -> str:
    """Returns the announcement address for a peer: the broker may listen on all interfaces."""
    if announce.startswith("ipc://"):
        return announce
    return f"{broker.rpartition(':')[0]}:{announce.rpartition(':')[2]}"


def router(
    context: "zmq.Context[zmq.Socket[bytes]]", key: Key | None = None
) -> "zmq.Socket[bytes]":
    """Makes the broker's ROUTER. With a key it is a CURVE server: make the Gate first."""
    socket = _server(context, zmq.ROUTER, key)
    socket.set(zmq.ROUTER_MANDATORY, 1)  # without it a full or unknown peer drops silently
    return socket


def publisher(
    context: "zmq.Context[zmq.Socket[bytes]]", key: Key | None = None
) -> "zmq.Socket[bytes]":
    socket = _server(context, zmq.XPUB, key)
    socket.set(zmq.XPUB_VERBOSE, 1)  # every subscriber is seen, so each gets the current version
    # All that ever comes in here is a handshake and "everything". Each byte of a topic is kept as a
    # node of a tree, for as long as its subscriber stays: 1 MiB of topic took 30 MB of memory.
    socket.set(zmq.MAXMSGSIZE, _SUBSCRIPTION_BYTES)
    socket.set(zmq.SNDHWM, _ANNOUNCED)
    return socket


def dealer(
    context: "zmq.Context[zmq.Socket[bytes]]", key: Key | None = None
) -> "zmq.Socket[bytes]":
    socket = _client(context, zmq.DEALER, key)
    # Queue only to a connected broker: messages in a pipe without one would be lost with the pipe.
    socket.set(zmq.IMMEDIATE, 1)
    return socket


def subscriber(
    context: "zmq.Context[zmq.Socket[bytes]]", key: Key | None = None
) -> "zmq.Socket[bytes]":
    socket = _client(context, zmq.SUB, key)
    socket.set(zmq.SUBSCRIBE, b"")
    # A lost announcement comes again with the next beat, so reconnecting is not urgent.
    socket.set(zmq.RECONNECT_IVL, 500)
    return socket


def _server(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, key: Key | None
) -> "zmq.Socket[bytes]":
    socket = _socket(context, kind)
    if key is not None:
        curve.make_server(socket, key)
    return socket


def _client(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, key: Key | None
) -> "zmq.Socket[bytes]":
    socket = _socket(context, kind)
    if key is not None:
        curve.make_client(socket, key)
    # Jitter is libzmq's: up to the same again. A broker that is not there costs a refused packet,
    # so coming back soon is cheap; handshakes that fail are paced by the link (handshake.py).
    socket.set(zmq.RECONNECT_IVL, 100)
    socket.set(zmq.RECONNECT_IVL_MAX, 2000)
    socket.set(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    return socket


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, _HIGH_WATER)
    socket.set(zmq.RCVHWM, _HIGH_WATER)
    socket.set(zmq.MAXMSGSIZE, MAX_BUFFER_BYTES)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL_S)
    socket.set(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
    socket.set(zmq.TCP_MAXRT, _UNHEARD_MS)
    return socket


def is_here(endpoint: str) -> bool:
    """Tells whether this machine has the address of an endpoint, as it may not while it starts; a
    name or an interface is left to ZeroMQ."""
    host = endpoint.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        family = unix.AF_INET6 if ipaddress.ip_address(host).version == 6 else unix.AF_INET
    except ValueError:
        return True
    with unix.socket(family) as trial:
        try:
            trial.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Listens; returns the address with its real port. Raises EndpointError if the address is
    taken."""
    if endpoint.endswith(":0"):
        endpoint = endpoint[:-1] + "*"
    # ZeroMQ would silently take the path away from the process that listens there.
    if endpoint.startswith("ipc://") and _answers(endpoint.removeprefix("ipc://")):
        raise EndpointError(
            f"cannot listen on {endpoint}: address already in use;"
            " stop the other broker or choose another with --bind"
        )
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise EndpointError(
            f"cannot listen on {endpoint}: {error.strerror.lower()};"
            " stop the other broker or choose another with --bind"
        ) from error
    real = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(real, bytes)
    return real.decode().rstrip("\0")
