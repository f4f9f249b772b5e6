"""A ZeroMQ socket on the event loop: send without waiting, receive in small batches.

The socket's descriptor is edge-triggered: any send or receive may swallow the edge of a message
that came in meanwhile. So the socket's own state is checked before every wait and after every send.
Receiving happens only after a wake-up and never inside an await, so cancelling a wait loses
nothing.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

import zmq

from headrace.broker.protocol.messages import Payload

# Messages taken at once before other tasks get the loop again.
DRAIN = 64

# Plain numbers: the library's flags are enums, and combining those costs more than a small send.
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
# From here on a copy costs more than the bookkeeping of sending without one.
_COPY_BELOW = 65536


class Mailbox:
    """Wraps a socket for one event loop; close it there."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()  # set = there may be something to receive
        self._waiting = False  # a reader awaits _ready
        self._looking = False  # a look at the socket's state is scheduled
        self._sent = 0  # frames watched so far
        self._leaving: dict[int, weakref.ref[memoryview]] = {}  # those that have not left
        # Below the library's convenience layer, which costs as much again for small frames.
        self._send = super(zmq.Socket, socket).send
        self._fd = socket.fileno()
        self._loop.add_reader(self._fd, self._ready.set)

    def send(self, frames: Sequence[Payload], left: Callable[[], None] | None = None) -> bool:
        """Queues a message for sending; False = no room or no such peer, and nothing was queued.
        `left` is called on the loop when ZeroMQ has passed the message on, or dropped it."""
        if left is not None:
            frames = [*frames[:-1], self._watched(frames[-1], left)]
        return self._put(frames) == 0

    def reaches(self, frames: Sequence[Payload]) -> bool:
        """Sends a message if there is room; False = the peer is not connected any more."""
        return self._put(frames) != zmq.EHOSTUNREACH

    def _put(self, frames: Sequence[Payload]) -> int:
        """Returns 0, or the error number."""
        last = len(frames) - 1
        try:
            for at, frame in enumerate(frames):
                flags = _DONTWAIT if at == last else _DONTWAIT | _SNDMORE
                if isinstance(frame, zmq.Frame) or len(frame) >= _COPY_BELOW:
                    self._send(frame, flags, copy=False)
                else:
                    self._send(frame, flags)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return int(error.errno)
            raise
        finally:
            if self._waiting and not self._looking:
                self._looking = True
                self._loop.call_soon(self._look)
        return 0

    def _watched(self, frame: Payload, left: Callable[[], None]) -> zmq.Frame:
        """Wraps the bytes in a view that ZeroMQ releases once they have left. The thread that drops
        the last reference to it, as a rule one of libzmq's, then calls `left` by way of the
        loop."""
        view = memoryview(frame.buffer if isinstance(frame, zmq.Frame) else frame)
        self._sent += 1
        number, loop = self._sent, self._loop

        def gone() -> None:
            del self._leaving[number]
            if not self.socket.closed:  # else there is nothing to go on with
                left()

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for it
                loop.call_soon_threadsafe(gone)

        self._leaving[number] = weakref.ref(view, tell)
        return zmq.Frame(view, copy=False)

    async def receive(self, timeout_s: float) -> list[list[zmq.Frame]]:
        """Receives up to DRAIN messages; none after the timeout. Safe to cancel."""
        self._ready.clear()
        if self._readable():
            await asyncio.sleep(0)  # a reader that always finds something must still yield
        else:
            timer = self._loop.call_later(timeout_s, self._ready.set)
            self._waiting = True
            try:
                await self._ready.wait()
            finally:
                self._waiting = False
                timer.cancel()
        return self._drain()

    def _look(self) -> None:
        """Wakes the reader after sends, which may have swallowed the edge."""
        self._looking = False
        if self._waiting and self._readable():
            self._ready.set()

    def _readable(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & _POLLIN)

    def _drain(self) -> list[list[zmq.Frame]]:
        messages: list[list[zmq.Frame]] = []
        receive = self.socket.recv
        try:
            while len(messages) < DRAIN:
                frame = receive(_DONTWAIT, copy=False)
                frames = [frame]
                while frame.more:
                    frame = receive(_DONTWAIT, copy=False)
                    frames.append(frame)
                messages.append(frames)
        except zmq.Again:
            pass
        return messages

    def close(self, linger_ms: int = 0) -> None:
        self._loop.remove_reader(self._fd)
        self.socket.close(linger_ms)

    def __enter__(self) -> "Mailbox":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(linger_ms=500)
