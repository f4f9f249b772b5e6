"""How an evaluator speaks with the broker: weights and the run's numbers in, scores out. It has no
streams, so it takes part in no credit, and nobody waits for its weights."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import zmq

from broker import introduction
from broker.blobs import Blob, Fetch
from broker.link import Link
from broker.wire import (
    Acting,
    Announce,
    Buffer,
    Bye,
    Chunk,
    Get,
    Hello,
    Malformed,
    Message,
    Payload,
    Ping,
    Status,
    Watch,
    Welcome,
    encode,
)

log = logging.getLogger(__name__)

# It stays so long after the run is over: the last weights come in and are played.
LAST_S = 30.0


class EvaluatorEnd:
    """The evaluator's Peer. The evaluator waits on `news` and then looks at what it needs."""

    def __init__(
        self, endpoint: str, *, name: str, inc: int, context: "zmq.Context[zmq.Socket[bytes]]"
    ) -> None:
        self.inc = inc
        self.link = Link(endpoint, self, context, subscribe=True)
        self.news = asyncio.Event()  # the run, weights or the end came in
        self.run: dict[str, Any] | None = None  # the shared run, once a broker welcomed us
        self.blob: Blob | None = None  # newest weights that arrived and were not taken yet
        self.over = ""  # why the run is complete; "" = it is not
        self.stats: dict[str, float] = {}  # sent along with every beat
        self.learner: dict[str, float] = {}  # what rank 0 last said of itself
        self._said_at = 0.0  # when it said so
        self._name = name
        self._spaces = ("", "")  # digest, words
        self._acting = -1  # version that was taken last
        self._fetch = Fetch()
        self._broker = 0  # incarnation we spoke with last

    def open(self, spaces: tuple[str, str]) -> None:
        """The environment is known: a learner of another one is told apart."""
        self._spaces = spaces
        self.link.greet()

    @property
    def fetching(self) -> bool:
        """Newer weights are on their way."""
        return self._fetch.busy

    def take_blob(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def acts_with(self, version: int, digest: str) -> None:
        """The broker announces what is newer until it hears of it."""
        self._acting = version
        self.link.send(encode(Acting(version, digest)))

    def clock(self) -> float | None:
        """Seconds of the run, by the learner's clock; None = it has said nothing yet."""
        said = self.learner.get("t")
        return None if said is None else said + time.monotonic() - self._said_at

    def trained_steps(self, version: int) -> int | None:
        """Those that were behind these weights. What the learner said is up to a beat older or
        newer, so it is brought to this version by the steps that a version takes."""
        at, steps = self.learner.get("version", 0.0), self.learner.get("trained_steps")
        if steps is None or at <= 0:
            return None
        return round(steps * version / at)

    def leave(self, text: str) -> None:
        self.link.send(encode(Bye(self.inc, False, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def greet(self) -> list[Payload]:
        digest, words = self._spaces
        hello = Hello("evaluator", self._name, self.inc, spaces=digest, version=self._acting)
        return encode(hello, introduction.encode(introduction.Introduction(spaces=words)))

    def welcomed(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        if self.run is None:
            run = introduction.unpack(body[0])
            if not isinstance(run, dict):
                raise Malformed("run")
            self.run = run
            log.info("welcome: run %s at %s", welcome.run, self.link.endpoint)
        if welcome.broker_inc != self._broker:
            self._broker = welcome.broker_inc
            self._fetch.reset(welcome.version)
        self.news.set()

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Announce():
                self._ask(self._fetch.on_announce(message))
            case Chunk() if buffers:
                blob, more = self._fetch.on_chunk(message, buffers[0])
                self._ask(more)
                self.blob = blob or self.blob
            case Status() if buffers:
                self._heard(introduction.unpack(buffers[0]))
                return
            case Bye():
                self.over = message.text or "the learner is done"
        self.news.set()

    def beats(self) -> list[list[Payload]]:
        self._ask(self._fetch.again())
        return [encode(Ping((), self.stats)), encode(Watch())]

    def _heard(self, status: Any) -> None:
        learners = status.get("learners") if isinstance(status, dict) else None
        said = [one for one in learners if one] if isinstance(learners, list) else []
        if said and isinstance(said[0], dict) and said[0] != self.learner:
            self.learner, self._said_at = said[0], time.monotonic()

    def _ask(self, gets: Sequence[Get]) -> None:
        for get in gets:
            self.link.send(encode(get))
