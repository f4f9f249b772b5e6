"""Decides who may connect: the one handler that libzmq asks about each key (ZAP).

    libzmq (ZAP) --request--> Gate --is the key in the folder?--> answer: user "role:name", or no

What a peer with that user may send is decided in server.py. The handler answers every request and
ends only by cancellation: if it died, every later client would hang for ever without a word.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from headrace.broker.line_limiter import LineLimiter
from headrace.broker.security import curve
from headrace.broker.security.authorised import Authorised
from headrace.broker.transport.mailbox import Mailbox

log = logging.getLogger(__name__)

_ADDRESS: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
# The peer hears it: 400 = your key is refused, 500 = the broker cannot tell now, come again.
YES, NO, LATER = b"200", b"400", b"500"

REASONS: Final = ("unknown", "mechanism", "failed")


class Request(NamedTuple):
    """Holds what libzmq asks."""

    id: bytes
    domain: bytes
    address: str
    mechanism: bytes
    credentials: tuple[bytes, ...]


class Reply(NamedTuple):
    status: bytes
    text: bytes = b""
    user: str = ""


class Gate:
    """Answers the ZAP requests of one context with CURVE server sockets; made before they are
    bound."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        authorised: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.accepted = 0  # handshakes, not peers
        self.authorised = Authorised(authorised, clock)
        self.authorised.refresh()
        self._clock = clock
        self._lines = LineLimiter()  # the counters tell what the log is spared
        self._monitors: list[zmq.Socket[bytes]] = []
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)

    def watch(self, socket: "zmq.Socket[bytes]") -> None:
        """Counts the handshakes that fail at this socket."""
        self._monitors.append(curve.monitor_handshakes(socket))

    def allowed(self, user: str) -> bool:
        """Tells whether the key that a connection came with is still authorised. Cheap."""
        return self.authorised.has(user)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._answer_loop(), name="gate")
                for monitor in self._monitors:
                    group.create_task(self._failure_loop(monitor), name="gate-failures")
        finally:
            self.close()

    def close(self) -> None:
        for socket in (self._socket, *self._monitors):
            socket.close(0)

    # ---- loops ----------------------------------------------------------------------------------

    async def _answer_loop(self) -> None:
        """Consumes libzmq's questions, produces one answer each."""
        mail = Mailbox(self._socket)
        try:
            while True:
                for frames in await mail.receive(3600.0):
                    mail.send(self.answer([frame.bytes for frame in frames]))
        finally:
            mail.close()

    async def _failure_loop(self, monitor: "zmq.Socket[bytes]") -> None:
        """Consumes what libzmq tells of handshakes that failed."""
        mail = Mailbox(monitor)
        try:
            while True:
                for frames in await mail.receive(3600.0):
                    self.handshake_failed(*curve.failure([frame.bytes for frame in frames]))
        finally:
            mail.close()

    # ---- decisions ------------------------------------------------------------------------------

    def answer(self, frames: Sequence[bytes]) -> list[bytes]:
        """Answers one request, which comes with its route; there is an answer whatever the request
        is."""
        envelope, asked = _opened(frames)
        request_id = asked[1] if len(asked) > 1 else b""
        try:
            reply = self.decide(_request(asked))
        except ValueError as error:
            self._refuse("failed", f"refused a connection: its ZAP request {error}")
            reply = Reply(LATER, b"malformed request")
        except Exception:  # noqa: BLE001 - whatever went wrong, the next client is served
            self._refuse("failed", "refused a connection: the handler failed", trace=True)
            reply = Reply(LATER, b"the handler failed")
        return [*envelope, _VERSION, request_id, reply.status, reply.text, reply.user.encode(), b""]

    def decide(self, request: Request) -> Reply:
        """Decides by the owner of the key, if it has one."""
        if request.domain != curve.DOMAIN or request.mechanism != b"CURVE":
            self._refuse("mechanism", f"refused {request.address}: it brought no key")
            return Reply(NO, b"a key is needed")
        public = request.credentials[0]
        user = self.authorised.user(public)
        if self.authorised.problem:
            self._refuse(
                "failed",
                f"refused {request.address}: the authorised keys cannot be read"
                f" ({self.authorised.problem})",
            )
            return Reply(LATER, b"the keys cannot be read")
        if user is None:
            self._refuse("unknown", self._unknown(request.address, public))
            return Reply(NO, b"unknown key")
        self.accepted += 1
        return Reply(YES, b"", user)

    def _unknown(self, address: str, public: bytes) -> str:
        """Words the log line about a key that is not in the folder."""
        was = self.authorised.withdrawn.get(public)
        if was is not None:
            return f"refused {address}: the key of {was.replace(':', ' ').strip()} is withdrawn"
        shown = z85.encode(public).decode()
        return f"refused {address}: no file in {self.authorised.folder} holds its key {shown}"

    def handshake_failed(self, event: int, value: int) -> None:
        """Counts a handshake that failed before we were asked; those that we refused are counted
        already."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == curve.MECHANISM_MISMATCH:
            self._refuse("mechanism", "refused a peer that came without a key")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._refuse("failed", "refused a peer that takes us for a broker with another key")
        else:
            self.refused["failed"] += 1  # it left in the middle: nothing to correct at this end

    def _refuse(self, reason: str, line: str, *, trace: bool = False) -> None:
        """Counts a refusal, and logs it at most once a minute."""
        self.refused[reason] += 1
        if self._lines.allows(line, self._clock()):
            log.warning("%s", line, exc_info=trace)


def _opened(frames: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Splits frames into the route, up to the empty frame, and the request."""
    at = frames.index(b"", 1) + 1 if b"" in frames[1:] else 1
    return list(frames[:at]), list(frames[at:])


def _request(frames: Sequence[bytes]) -> Request:
    """Reads a request; raises ValueError when libzmq would not send it."""
    if len(frames) < 6 or frames[0] != _VERSION:
        raise ValueError("is malformed")
    _, request_id, domain, address, _identity, mechanism, *credentials = frames
    if mechanism == b"CURVE" and [len(part) for part in credentials] != [32]:
        raise ValueError("has no key of 32 bytes")
    return Request(
        request_id, domain, address.decode(errors="replace"), mechanism, tuple(credentials)
    )
