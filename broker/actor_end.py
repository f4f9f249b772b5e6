"""How a sampler speaks with the broker: its unrolls out, credit and weights in."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import zmq

from broker import introduction
from broker.blobs import Blob, Fetch
from broker.journal import Journal
from broker.link import Link
from broker.outbox import Outbox
from broker.wire import (
    MAX_ENTRIES,
    Ack,
    Acting,
    Announce,
    Buffer,
    Bye,
    Chunk,
    Get,
    Hello,
    Limit,
    Malformed,
    Message,
    Payload,
    Pong,
    Welcome,
    encode,
)

log = logging.getLogger(__name__)


class ActorEnd:
    """The sampler's Peer. The sampler waits on `news` and then looks at what it needs."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        inc: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        journal: Journal,
    ) -> None:
        self.name = name
        self.inc = inc
        self.link = Link(endpoint, self, context, subscribe=True)
        self.outbox = Outbox(inc=inc, streams=0)
        self.news = asyncio.Event()  # credit, weights, acknowledgements or the end came in
        self.run: dict[str, Any] | None = None  # the shared run, once a broker welcomed us
        self.blob: Blob | None = None  # newest weights that arrived and were not taken yet
        self.over = ""  # why the run is complete; "" = it is not
        self.stats: dict[str, float] = {}  # sent along with every beat
        self.acting = -1  # version the sampler acts with
        self.bytes_sent = 0
        self._spaces = ("", "")  # digest, words
        self._fetch = Fetch()
        self._broker = 0  # incarnation we spoke with last
        self._journal = journal

    def open(self, *, streams: int, spaces: tuple[str, str]) -> None:
        """The environments are made: ask for credit."""
        self.outbox = Outbox(inc=self.inc, streams=streams)
        self._spaces = spaces
        self.link.greet()

    def put(
        self,
        stream: int,
        *,
        versions: tuple[int, int],
        steps: int,
        digest: int,
        ended: int,
        episodes: tuple[tuple[float, int], ...],
        buffers: Sequence[Buffer],
    ) -> None:
        """A finished unroll goes out; it stays in the outbox until it is acknowledged."""
        frames = self.outbox.put(
            stream, versions=versions, steps=steps, digest=digest, ended=ended,
            episodes=episodes, buffers=buffers,
        )  # fmt: skip
        seq = self.outbox.last(stream)
        self._journal.generated(self.inc, stream, seq, steps)
        self.bytes_sent += sum(len(frame) for frame in frames)
        self.link.send(frames)

    def take_blob(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def acts_with(self, version: int, digest: str) -> None:
        """Proof that the weights arrived: the digest of what the module holds now."""
        self.acting = version
        self.link.send(encode(Acting(version, digest)))

    def leave(self, text: str) -> None:
        """Clean exit; what is open is abandoned and said so."""
        gone = self.outbox.abandon()
        for stream, lo, hi in gone:
            self._journal.given_up(self.inc, stream, lo, hi)
        # A full list says that another follows, so the last one is never full.
        for at in range(0, len(gone) + 1, MAX_ENTRIES):
            self.link.send(encode(Bye(self.inc, False, text, tuple(gone[at : at + MAX_ENTRIES]))))

    # ---- Peer -----------------------------------------------------------------------------------

    def greet(self) -> list[Payload]:
        streams = self.outbox.introduction() if self._spaces[0] else ()
        hello = Hello("actor", self.name, self.inc, spaces=self._spaces[0], version=self.acting)
        return encode(
            hello,
            introduction.encode(introduction.Introduction(spaces=self._spaces[1], streams=streams)),
        )

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
            case Limit():
                self.outbox.on_limit(message)
            case Ack():
                self.outbox.on_ack(message)
                for stream, lo, hi in message.ranges:
                    self._journal.acknowledged(self.inc, stream, lo, hi, message.outcome)
            case Pong():
                for frames in self.outbox.resend(message.missing):
                    self.link.send(frames)
                return
            case Announce():
                self._ask(self._fetch.on_announce(message))
                return
            case Chunk() if buffers:
                blob, more = self._fetch.on_chunk(message, buffers[0])
                self._ask(more)
                self.blob = blob or self.blob
            case Bye():
                self.over = message.text or "the learner is done"
        self.news.set()

    def beats(self) -> list[list[Payload]]:
        self._ask(self._fetch.again())
        if not self._spaces[0]:
            return []
        return [encode(ping) for ping in self.outbox.pings(self.stats)]

    def _ask(self, gets: Sequence[Get]) -> None:
        for get in gets:
            self.link.send(encode(get))
