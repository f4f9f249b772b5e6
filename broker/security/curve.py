"""CURVE options of both ends of a socket, and the monitor that reports failed handshakes.

The Gate (transport/key_gate.py) decides who may connect.
"""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import zmq

from headrace.broker.protocol.messages import Buffer
from headrace.broker.security.keys import Key

# A named domain: only sockets that set it are asked about here, and "*" would not match it.
DOMAIN: Final = b"headrace"
# Value of a failed handshake where one side has keys and the other has not.
MECHANISM_MISMATCH: Final = 0x11000002
# Handshakes that failed, also those that failed before the Gate was asked about a key.
FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def make_server(socket: "zmq.Socket[bytes]", key: Key) -> None:
    """Makes the socket a CURVE server: only those connect that the Gate lets in."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, key.secret.encode())
    socket.set(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.set(zmq.ZAP_DOMAIN, DOMAIN)
    # Without it libzmq lets every peer in when no handler is bound.
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def make_client(socket: "zmq.Socket[bytes]", key: Key) -> None:
    """Makes the socket a CURVE client, which talks only to the owner of this one broker key."""
    socket.set(zmq.CURVE_SERVERKEY, key.broker.encode())
    socket.set(zmq.CURVE_SECRETKEY, key.secret.encode())
    socket.set(zmq.CURVE_PUBLICKEY, key.public.encode())


def monitor_handshakes(socket: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    """Makes a monitor of failed handshakes. It must be read: a full monitor would stop all traffic,
    so its queue is unbounded; it holds what fails while the loop is busy."""
    name = f"inproc://handshakes.{socket.underlying:x}"
    socket.monitor(name, FAILURES)
    made: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    made.set(zmq.RCVHWM, 0)
    made.set(zmq.LINGER, 0)
    made.connect(name)
    return made


def stop_monitor(socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
    """Closes a monitor; call it before the socket is closed."""
    with contextlib.suppress(zmq.ZMQError):  # the context may be gone
        socket.monitor(None, 0)
    monitor.close(0)


def failures(monitor: "zmq.Socket[bytes]") -> Iterator[tuple[int, int]]:
    """Yields all failures that came in, without waiting."""
    while True:
        try:
            frames = monitor.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        yield failure(frames)


def failure(frames: Sequence[Buffer]) -> tuple[int, int]:
    """Reads event and value from a monitor's message."""
    event, value = struct.unpack("=HI", bytes(frames[0])[:6])
    return int(event), int(value)
