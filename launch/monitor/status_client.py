"""Asks a broker for its status over the wire: a read-only peer that never waits unasked."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import zmq

from headrace.broker.protocol import hello_payload, messages
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.launch.process import runtime

_PATIENCE_S: Final = 2.0
_AGAIN_S: Final = 0.5


class Watcher:
    """A broker's read-only peer, without waiting: ask, and look later."""

    def __init__(self, endpoint: str, key: Key | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = endpoints.dealer(self.context, key)
        self._socket.connect(endpoint)
        self._inc = runtime.incarnation()
        self.status: dict[str, Any] = {}
        self.heard: float | None = None  # when the last status came, by time.monotonic
        self.refused = ""  # why the broker will not have us, in its words

    def ask(self) -> None:
        self._send(messages.encode(messages.Watch()))

    def look(self) -> None:
        """Take what has come in; greet a broker that does not know us."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._hear(*messages.decode(frames))
            except messages.OtherProtocol as error:
                self.refused = str(error)
            except messages.WireError:
                continue  # whatever it is, it is no broker's answer

    def wait(self, seconds: float, *files: int) -> list[int]:
        """Until news may have come or one of these files can be read; says which."""
        poller = zmq.Poller()
        for readable in (self._socket, *files):
            poller.register(readable, zmq.POLLIN)
        return [fd for fd, _ in poller.poll(int(1000 * seconds)) if isinstance(fd, int)]

    def silent_s(self) -> float:
        """Since the last answer; endless when there was none."""
        return float("inf") if self.heard is None else time.monotonic() - self.heard

    def close(self) -> None:
        self._socket.close(0)
        self.context.term()

    def _hear(self, message: messages.Message, buffers: Sequence[messages.Buffer]) -> None:
        match message:
            case messages.Resync():
                hello = messages.Hello("watcher", "view", self._inc)
                self._send(
                    messages.encode(hello, hello_payload.encode(hello_payload.HelloPayload()))
                )
                self.ask()  # what was asked before was not answered
            case messages.Status() if buffers:
                status = hello_payload.unpack(buffers[0])
                self.status = status if isinstance(status, dict) else {}
                self.heard, self.refused = time.monotonic(), ""
            case messages.Refuse():
                self.refused = message.text

    def _send(self, frames: Any) -> None:
        with contextlib.suppress(zmq.Again):  # no broker yet; the next question will do
            self._socket.send_multipart(frames, zmq.DONTWAIT)


class FromBroker:
    """A broker's numbers by way of its wire, for who may not look at its HTTP port.

    Called by one thread at a time; it asks the broker only then.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __call__(self) -> Mapping[str, Any]:
        """Without an answer: the last one, and for how long there was none."""
        watcher, began = self._watcher, time.monotonic()
        watcher.look()  # what came after our patience is old
        before, asked = watcher.heard, float("-inf")
        while (now := time.monotonic()) < began + _PATIENCE_S:
            if now >= asked + _AGAIN_S:
                watcher.ask()
                asked = now
            watcher.wait(_AGAIN_S)
            watcher.look()
            if watcher.heard != before:
                return watcher.status
        return {**watcher.status, "silent_s": watcher.silent_s()}
