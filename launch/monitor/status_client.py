"""A read-only peer that asks a run's brokers for their status over the wire, without blocking."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import zmq

from headrace.broker import sanitise
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints, several
from headrace.launch.config.run_file import ConfigError
from headrace.launch.monitor.merged_status import merged
from headrace.launch.process import runtime

_PATIENCE_S: Final = 2.0
_AGAIN_S: Final = 0.5
_ANSWERS_S: Final = 5.0
_TURN_S: Final = 0.2  # how late a signal may be noticed


class StatusClient:
    """Asks a broker, or several with commas between, for their status as a read-only peer. `ask`
    sends and `receive` takes in what came; neither blocks."""

    def __init__(self, brokers: str, key: Key | None = None) -> None:
        addresses = several.addresses(brokers)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        for address in addresses:
            self._sockets.append(endpoints.dealer(self.context, key))
            self._sockets[-1].connect(address)
        self._inc = runtime.incarnation()
        self._told: list[dict[str, Any]] = [{} for _ in self._sockets]
        self.status: dict[str, Any] = {}  # of all of them
        self.last_status_at: float | None = None  # when the last status came, by time.monotonic
        self.refused = ""  # the broker's reason for refusing us; "" = it did not

    def ask(self) -> None:
        for socket in self._sockets:
            self._send(socket, messages.encode(messages.Watch()))

    def receive(self) -> None:
        """Receives all that has come; sends HELLO to a broker that does not know this peer."""
        for at in range(len(self._sockets)):
            self._receive(at)

    def _receive(self, at: int) -> None:
        while True:
            try:
                frames = self._sockets[at].recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._handle(at, *messages.decode(frames))
            except messages.OtherProtocol as error:
                self.refused = str(error)
            except messages.WireError:
                continue  # whatever it is, a broker did not send it

    def wait(self, seconds: float, *files: int) -> list[int]:
        """Waits until a message may have come or one of these files can be read; returns those
        files."""
        poller = zmq.Poller()
        for readable in (*self._sockets, *files):
            poller.register(readable, zmq.POLLIN)
        return [fd for fd, _ in poller.poll(int(1000 * seconds)) if isinstance(fd, int)]

    def silent_s(self) -> float:
        """Returns the seconds since the last status; infinity = there was none."""
        return (
            float("inf") if self.last_status_at is None else time.monotonic() - self.last_status_at
        )

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(0)
        self.context.term()

    def _handle(
        self, at: int, message: messages.Message, buffers: Sequence[messages.Buffer]
    ) -> None:
        match message:
            case messages.Resync():
                hello = messages.Hello("watcher", "view", self._inc)
                intro = hello_payload.encode(hello_payload.HelloPayload())
                self._send(self._sockets[at], messages.encode(hello, intro))
                self.ask()  # the question before HELLO was not answered
            case messages.Status() if buffers:
                status = hello_payload.unpack(buffers[0])
                self._told[at] = status if isinstance(status, dict) else {}
                self.status = merged(self._told)
                self.last_status_at, self.refused = time.monotonic(), ""
            case messages.Refuse():
                self.refused = message.text

    def _send(self, socket: "zmq.Socket[bytes]", frames: Any) -> None:
        with contextlib.suppress(zmq.Again):  # no broker yet; the next question will do
            socket.send_multipart(frames, zmq.DONTWAIT)


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
