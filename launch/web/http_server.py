"""An HTTP server for GET on a thread of its own, that slow and silent connections cannot occupy.

    connected --> reading --whole head--> answering --> writing --> closed
                  10 s, of many the        a few        10 s, of many the
                  oldest gives way         threads      oldest gives way

One event loop reads and writes; only what takes time to make goes to a thread. One request a
connection.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

# Each of the two: until the request's head is here, and until its answer is gone.
_SECONDS: Final = 10.0
# Connections of each kind at once. Prometheus, a few open pages and a person with curl are never
# that many; of more the oldest is closed.
_MOST: Final = 64
_MOST_ANSWERING: Final = 32
_HEAD_BYTES: Final = 16 << 10
_THREADS: Final = 4
# Connections taken from the kernel at a time; what they sent is read before the next are taken, so
# a client that sends at once is never closed as the oldest silent one.
_AT_A_TIME: Final = 8
_BACKLOG: Final = 512


class Request(NamedTuple):
    """Holds the parts of a request that are looked at."""

    path: str  # without what follows a question mark
    host: str  # as the client calls us; "" = it does not say


class Answer(NamedTuple):
    """Holds an answer to a request."""

    status: int
    kind: str  # content type
    body: bytes


# Returns the answer, or what makes it in a thread.
Answers = Callable[[Request], Answer | Callable[[], Answer]]


class WebServer:
    """Listens once made; serves after `start`, as long as the process lives."""

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        if not 0 <= port < 65536:
            raise OverflowError(f"{port} is no port")
        # First, so that a wrong address leaves no socket behind.
        kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
        found = socket.getaddrinfo(host or None, port, type=kind, flags=passive)
        family = min(found)[0]  # IPv4 where a name has both
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port = int(self._socket.getsockname()[1])
        self.answers = answers
        # Both with the oldest first.
        self.reading: dict[_Connection, None] = {}
        self.writing: dict[_Connection, None] = {}
        self.answering = 0
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="web")

    def start(self) -> None:
        threading.Thread(target=self._run, name="web", daemon=True).start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Connection(self, loop), sock=self._socket, backlog=_AT_A_TIME
        )
        self._socket.listen(_BACKLOG)  # the loop took its own number for the kernel's, too
        await server.serve_forever()


class _Connection(asyncio.Protocol):
    """Reads one request, and writes its answer."""

    def __init__(self, server: WebServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._head = b""
        self._transport: asyncio.Transport | None = None  # None once it is lost
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._enter(self._server.reading)

    def data_received(self, data: bytes) -> None:
        if self not in self._server.reading:
            return  # it has asked already
        self._head += data
        if b"\r\n\r\n" in self._head:
            del self._server.reading[self]
            self._answer()
        elif len(self._head) > _HEAD_BYTES:
            del self._server.reading[self]
            self._write(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def eof_received(self) -> bool:
        """Keeps the connection open for the answer: a client that has sent its request may still
        listen."""
        return self not in self._server.reading

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._server.reading.pop(self, None)
        self._server.writing.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, those: "dict[_Connection, None]") -> None:
        """Adds the connection to `those` with a new deadline; where there are too many the oldest
        is closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_SECONDS, self.abort)
        if len(those) >= _MOST:
            oldest = next(iter(those))
            del those[oldest]
            oldest.abort()
        those[self] = None

    def _answer(self) -> None:
        request = _request(self._head)
        if isinstance(request, HTTPStatus):
            self._write(_plain(request))
            return
        made = self._server.answers(request)
        if isinstance(made, Answer):
            self._write(made)
        elif self._server.answering >= _MOST_ANSWERING:
            self._write(_plain(HTTPStatus.SERVICE_UNAVAILABLE))
        else:
            self._server.answering += 1
            self._loop.run_in_executor(self._server.threads, made).add_done_callback(self._made)

    def _made(self, future: "asyncio.Future[Answer]") -> None:
        self._server.answering -= 1
        error = future.exception()
        if error is not None:
            log.error("a page could not be made", exc_info=error)
        self._write(future.result() if error is None else _plain(HTTPStatus.INTERNAL_SERVER_ERROR))

    def _write(self, answer: Answer) -> None:
        if self._transport is None:
            return
        self._enter(self._server.writing)
        self._transport.write(_head(answer) + answer.body)
        self._transport.write_eof()  # a child that was forked meanwhile has this connection, too
        self._transport.close()


def _request(head: bytes) -> Request | HTTPStatus:
    """Returns the parsed request, or the status that refuses it."""
    lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return HTTPStatus.BAD_REQUEST
    if words[0] != "GET":
        return HTTPStatus.NOT_IMPLEMENTED
    fields = (line.partition(":") for line in lines[1:])
    hosts = {value.strip() for name, _, value in fields if name.strip().lower() == "host"}
    if len(hosts) > 1:
        return HTTPStatus.BAD_REQUEST
    return Request(words[1].partition("?")[0], "".join(hosts))


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, "text/plain", f"{status.phrase}\n".encode())


def _head(answer: Answer) -> bytes:
    fields = (
        f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    )
    return "".join(f"{field}\r\n" for field in (*fields, "")).encode("latin-1")
