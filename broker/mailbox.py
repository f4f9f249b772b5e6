"""One ZeroMQ socket on the event loop: send without waiting, receive in small batches.

The socket's descriptor is edge-triggered: any send or receive may swallow the edge of a message
that came in meanwhile. So every wait is preceded by a look at the socket's own state, and every
send is followed by one. Receiving happens only after a wake-up and never inside an await, so
cancelling a wait loses nothing.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType

import zmq

from broker.wire import Payload

# Messages taken at once before other tasks get the loop again.
DRAIN = 64


class Mailbox:
    """Owned by one event loop; close it there."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()  # set = there may be something to receive
        self._fd = socket.fileno()
        self._loop.add_reader(self._fd, self._ready.set)

    def send(self, frames: Sequence[Payload]) -> bool:
        """Queue a message for sending; False = no room or no such peer, and nothing was queued."""
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        finally:
            if self._readable():
                self._ready.set()
        return True

    async def receive(self, timeout_s: float) -> list[list[zmq.Frame]]:
        """Up to DRAIN messages; empty after the timeout. Safe to cancel."""
        messages = self._drain()
        if messages:
            await asyncio.sleep(0)  # a reader that always finds something must still yield
            return messages
        self._ready.clear()
        if not self._readable():
            timer = self._loop.call_later(timeout_s, self._ready.set)
            try:
                await self._ready.wait()
            finally:
                timer.cancel()
        return self._drain()

    def _readable(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> list[list[zmq.Frame]]:
        messages: list[list[zmq.Frame]] = []
        receive = self.socket.recv
        try:
            while len(messages) < DRAIN:
                frame = receive(zmq.DONTWAIT, copy=False)
                frames = [frame]
                while frame.more:
                    frame = receive(zmq.DONTWAIT, copy=False)
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
