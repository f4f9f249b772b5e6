"""The evaluator's end: weights and the run's numbers in, scores out. It has no streams, so it takes
part in no credit, and nothing waits for its weights."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import zmq

from headrace.broker.protocol import hello_payload
from headrace.broker.protocol.messages import (
    Announce,
    Buffer,
    Bye,
    Chunk,
    Hello,
    Message,
    Payload,
    Ping,
    Status,
    Watch,
    Welcome,
    encode,
)
from headrace.broker.security import keys
from headrace.broker.transport.link import Link
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.subscriber import Subscriber

# The evaluator stays this long after the run is over: the last weights come in and are played.
LAST_S = 30.0


class EvaluatorEnd:
    """Speaks with the broker for the evaluator, which waits on `news` and then looks at what it
    needs."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        inc: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key: keys.Key | None = None,
    ) -> None:
        self.inc = inc
        self.link = Link(endpoint, self, context, subscribe=True, key=key)
        self.news = asyncio.Event()  # the run, weights or the end came in
        self.over = ""  # why the run is complete; "" = it is not
        self.stats: dict[str, float] = {}  # sent along with every beat
        self.port = 0  # where its metrics are served; 0 = nowhere
        self.learner: dict[str, float] = {}  # what rank 0 last said of itself
        self._said_at = 0.0  # when it said so
        self._name = name
        self._spaces = ("", "")  # digest, words
        self.weights = Subscriber(self.link)

    def open(self, spaces: tuple[str, str]) -> None:
        """Sends the spaces, once the environment is known: a learner of another one is told
        apart."""
        self._spaces = spaces
        self.link.greet()

    def ask_for_blob(self) -> None:
        """Fetches the newest weights, and those after them until some are taken."""
        self.weights.want(True)

    def take_blob(self) -> Blob | None:
        """Returns the newest weights. No others are fetched before they are asked for, or the run
        is over: a run makes hundreds of versions for each that is evaluated."""
        self.weights.want(bool(self.over))
        return self.weights.take()

    def clock(self) -> float | None:
        """Returns the seconds of the run, by the learner's clock; None = it has reported nothing
        yet."""
        said = self.learner.get("t")
        return None if said is None else said + time.monotonic() - self._said_at

    def trained_steps(self, version: int) -> int | None:
        """Returns how many steps were behind these weights. The learner's report is up to a beat
        older or newer, so it is scaled to this version by the steps that a version takes."""
        at, steps = self.learner.get("version", 0.0), self.learner.get("trained_steps")
        if steps is None or at <= 0:
            return None
        return round(steps * version / at)

    def leave(self, text: str) -> None:
        self.link.leave(encode(Bye(self.inc, False, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def hello_frames(self) -> list[Payload]:
        digest, words = self._spaces
        hello = Hello("evaluator", self._name, self.inc, spaces=digest, version=self.weights.acting)
        return encode(
            hello, hello_payload.encode(hello_payload.HelloPayload(spaces=words, port=self.port))
        )

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        self.weights.on_welcome(welcome, body)
        self.news.set()

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Announce() | Chunk():
                self.weights.handle(message, buffers)
            case Status() if buffers:
                self._heard(hello_payload.unpack(buffers[0]))
                return
            case Bye():
                self.over = message.text or "the learner is done"
                self.ask_for_blob()
        self.news.set()

    def beat_frames(self) -> list[list[Payload]]:
        self.weights.beat()
        return [encode(Ping((), {**self.stats, "clock": time.time()})), encode(Watch())]

    def _heard(self, status: Any) -> None:
        learners = status.get("learners") if isinstance(status, dict) else None
        said = [one for one in learners if one] if isinstance(learners, list) else []
        if said and isinstance(said[0], dict) and said[0].get("t") != self.learner.get("t"):
            self.learner, self._said_at = said[0], time.monotonic()
