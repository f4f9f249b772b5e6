"""A ZeroMQ peer written by hand over a plain TCP socket, so that it can say what the library never
would: ZMTP 3.1 with the NULL mechanism (rfc.zeromq.org/spec/37)."""

import socket
import struct
from types import TracebackType

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
MORE, LONG, COMMAND = 1, 2, 4


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01") -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes(32)


def ready(kind: bytes = b"DEALER") -> bytes:
    """The READY command of a socket of that type."""
    body = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
    return bytes((COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack("!I", len(value)) + value


def frame(body: bytes, *, more: bool = False) -> bytes:
    if len(body) < 256:
        return bytes((MORE * more, len(body))) + body
    return declared(len(body), more=more) + body


def declared(size: int, *, more: bool = False) -> bytes:
    """The head of a frame of so many bytes; whether they follow is the sender's affair."""
    return bytes((LONG | MORE * more,)) + struct.pack("!Q", size)


def subscribe(topic: bytes) -> bytes:
    """A subscription, as a SUB of ZMTP 3.1 says it: a command."""
    body = b"\x09SUBSCRIBE" + topic
    if len(body) < 256:
        return bytes((COMMAND, len(body))) + body
    return bytes((COMMAND | LONG,)) + struct.pack("!Q", len(body)) + body


class Line:
    """One TCP connection to tcp://host:port."""

    def __init__(self, endpoint: str, *, receive_buffer: int = 0) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20.0)
        self.socket.connect((host, int(port)))

    def say(self, data: bytes) -> bool:
        """False = the other side has hung up."""
        try:
            self.socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def shake(self, kind: bytes = b"DEALER") -> "Line":
        """The whole handshake, both ways."""
        assert self.say(greeting())
        assert len(self.hear(64)) == 64
        assert self.say(ready(kind))
        head = self.hear(2)
        assert head[0] == COMMAND, head
        assert self.hear(head[1]).startswith(b"\x05READY")
        return self

    def hear(self, size: int) -> bytes:
        """So many bytes, or fewer when the other side hangs up."""
        heard = b""
        while len(heard) < size:
            try:
                piece = self.socket.recv(size - len(heard))
            except ConnectionError:
                break
            if not piece:
                break
            heard += piece
        return heard

    def hung_up(self, timeout_s: float = 20.0) -> bool:
        """Does the other side close it? Whatever it says before is read and forgotten."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Line":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
