"""A read-only peer that asks a broker for its status over the wire, without blocking."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import zmq

from headrace.broker import sanitise
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import runtime

_PATIENCE_S: Final = 2.0
_AGAIN_S: Final = 0.5
_ANSWERS_S: Final = 5.0
_TURN_S: Final = 0.2  # how late a signal may be noticed


class StatusClient:
    """Asks a broker for its status as a read-only peer. `ask` sends and `receive` takes in what
    came; neither blocks."""

    def __init__(self, endpoint: str, key: Key | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = endpoints.dealer(self.context, key)
        self._socket.connect(endpoint)
        self._inc = runtime.incarnation()
        self.status: dict[str, Any] = {}
        self.last_status_at: float | None = None  # when the last status came, by time.monotonic
        self.refused = ""  # the broker's reason for refusing us; "" = it did not

    def ask(self) -> None:
        self._send(messages.encode(messages.Watch()))

    def receive(self) -> None:
        """Receives all that has come; sends HELLO to a broker that does not know this peer."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._handle(*messages.decode(frames))
            except messages.OtherProtocol as error:
                self.refused = str(error)
            except messages.WireError:
                continue  # whatever it is, a broker did not send it

    def wait(self, seconds: float, *files: int) -> list[int]:
        """Waits until a message may have come or one of these files can be read; returns those
        files."""
        poller = zmq.Poller()
        for readable in (self._socket, *files):
            poller.register(readable, zmq.POLLIN)
        return [fd for fd, _ in poller.poll(int(1000 * seconds)) if isinstance(fd, int)]

    def silent_s(self) -> float:
        """Returns the seconds since the last status; infinity = there was none."""
        return (
            float("inf") if self.last_status_at is None else time.monotonic() - self.last_status_at
        )

    def close(self) -> None:
        self._socket.close(0)
        self.context.term()

    def _handle(self, message: messages.Message, buffers: Sequence[messages.Buffer]) -> None:
        match message:
            case messages.Resync():
                hello = messages.Hello("watcher", "view", self._inc)
                self._send(
                    messages.encode(hello, hello_payload.encode(hello_payload.HelloPayload()))
                )
                self.ask()  # the question before HELLO was not answered
            case messages.Status() if buffers:
                status = hello_payload.unpack(buffers[0])
                self.status = status if isinstance(status, dict) else {}
                self.last_status_at, self.refused = time.monotonic(), ""
            case messages.Refuse():
                self.refused = message.text

    def _send(self, frames: Any) -> None:
        with contextlib.suppress(zmq.Again):  # no broker yet; the next question will do
            self._socket.send_multipart(frames, zmq.DONTWAIT)


class PolledStatus:
    """Fetches a broker's status over its wire, for users who cannot reach its HTTP port.

    Called by one thread at a time; it asks the broker only then.
    """

    def __init__(self, client: StatusClient) -> None:
        self._client = client

    def __call__(self) -> Mapping[str, Any]:
        """Returns a new status; without an answer the last one, with the seconds of silence as
        `silent_s`."""
        client, began = self._client, time.monotonic()
        client.receive()  # drops answers to earlier calls that gave up
        before, asked = client.last_status_at, float("-inf")
        while (now := time.monotonic()) < began + _PATIENCE_S:
            if now >= asked + _AGAIN_S:
                client.ask()
                asked = now
            client.wait(_AGAIN_S)
            client.receive()
            if client.last_status_at != before:
                return client.status
        return {**client.status, "silent_s": client.silent_s()}


def wait_for_first(client: StatusClient, address: str, asked: runtime.StopRequested) -> bool:
    """Waits for the first status; returns False if asked to stop before. Raises ConfigError if no
    broker answers or it refuses us."""
    deadline = time.monotonic() + _ANSWERS_S
    while not asked and client.last_status_at is None:
        if client.refused:
            raise ConfigError(f"{address}: {sanitise.words(client.refused, 1000)}")
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no broker answers at {address} within {_ANSWERS_S:.0f} s: does one run there, and"
                f" does it want a --key? headrace doctor --broker {address} says more"
            )
        client.ask()
        client.wait(_TURN_S)
        client.receive()
    return not asked
