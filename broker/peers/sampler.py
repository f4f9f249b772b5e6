"""The sampler's end: its unrolls out, credit and weights in."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from headrace.broker.histograms import ACK_S, Buckets
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.protocol import hello_payload
from headrace.broker.protocol.messages import (
    MAX_ENTRIES,
    Ack,
    Announce,
    Buffer,
    Bye,
    Chunk,
    Hello,
    Limit,
    Message,
    Payload,
    Pong,
    Range,
    Recall,
    Welcome,
    encode,
)
from headrace.broker.security import keys
from headrace.broker.transport import endpoints
from headrace.broker.transport.link import Link
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.subscriber import Subscriber

# Unrolls over which it is measured how long they wait to be trained.
_WAITS = 4


class SamplerEnd:
    """Speaks with the broker for the sampler, which waits on `news` and then looks at what it
    needs."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        inc: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        journal: Journal,
        key: keys.Key | None = None,
        shelf: Path | None = None,
    ) -> None:
        self.name = name
        self.inc = inc
        # A relay of this machine announces weights, too, and has the key.
        relay = endpoints.relay_address(shelf) if shelf is not None else ""
        self.link = Link(endpoint, self, context, subscribe=not relay, key=key, relay=relay)
        self.outbox = Outbox(inc=inc, streams=0)
        self.news = asyncio.Event()  # credit, weights, acknowledgements or the end came in
        self.over = ""  # why the run is complete; "" = it is not
        self.say: Callable[[], dict[str, float]] = dict  # what is sent along with every beat
        self.port = 0  # where its metrics are served; 0 = nowhere
        self.bytes_sent = 0
        self.acks = Buckets(ACK_S)  # from sending to the acknowledgement
        self.last_ack = 0.0  # when one came, seconds since 1970; 0 = none yet
        # (stream, seq) -> when, and acting with what; not acknowledged
        self._sent: dict[tuple[int, int], tuple[float, int]] = {}
        self._waits = deque([0], maxlen=_WAITS)  # versions; of the latest that were acknowledged
        self._spaces = ("", "")  # digest, words
        self.weights = Subscriber(self.link, shelf)
        self.journal = journal
        journal.joins("actor", inc, name)

    @property
    def stats(self) -> dict[str, float]:
        """Returns the sampler's own figures, as they are now."""
        return {**self.say(), "clock": time.time()}

    @property
    def run(self) -> dict[str, Any] | None:
        """Returns the shared run, once a broker welcomed us."""
        return self.weights.run

    @property
    def blob(self) -> Blob | None:
        """Returns the newest weights that arrived and were not taken yet."""
        return self.weights.blob

    @property
    def acting(self) -> int:
        """Returns the version that the sampler acts with."""
        return self.weights.acting

    @property
    def waited(self) -> int:
        """Returns the versions that passed between an unroll's end and its training: the fewest of
        the latest, so that a single late one does not count."""
        return min(self._waits)

    async def serve(self) -> None:
        """Runs the link and the poll of the machine's shelf. Ends as the link does."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run(), name="link")
            group.create_task(self.weights.poll_shelf(self.news), name="shelf")

    def open(self, *, streams: int, spaces: tuple[str, str]) -> None:
        """Asks for credit, once the environments are made."""
        self.outbox = Outbox(inc=self.inc, streams=streams)
        self._spaces = spaces
        self.journal.plays(self.inc, streams)
        self.link.greet()

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        """Sends a finished unroll; it stays in the outbox until it is acknowledged."""
        frames = self.outbox.put(stream, finished)
        seq = self.outbox.last(stream)
        self._sent[stream, seq] = time.monotonic(), self.acting
        self.journal.generated(self.inc, stream, seq, finished.steps)
        self.bytes_sent += sum(len(frame) for frame in frames)
        self.link.send_bulk((stream, seq), frames)

    def take_blob(self) -> Blob | None:
        return self.weights.take()

    def acts_with(self, version: int, digest: str) -> None:
        """Proves that the weights arrived: sends the digest of what the module holds now."""
        self.journal.acts_with(self.inc, version)
        self.weights.acts_with(version, digest)

    def leave(self, text: str) -> None:
        """Ends cleanly: sends the last figures, then abandons what is open and says so."""
        for frames in self.beat_frames():
            self.link.send(frames)
        gone = self.outbox.abandon()
        self._forget(gone)
        self._sent.clear()
        self.journal.given_up(self.inc, gone)
        # A full list means that another follows, so the last one is never full.
        for at in range(0, len(gone) + 1, MAX_ENTRIES):
            self.link.leave(encode(Bye(self.inc, False, text, tuple(gone[at : at + MAX_ENTRIES]))))

    # ---- Peer -----------------------------------------------------------------------------------

    def hello_frames(self) -> list[Payload]:
        streams = self.outbox.hello_streams() if self._spaces[0] else ()
        hello = Hello("actor", self.name, self.inc, spaces=self._spaces[0], version=self.acting)
        return encode(
            hello,
            hello_payload.encode(
                hello_payload.HelloPayload(spaces=self._spaces[1], streams=streams, port=self.port)
            ),
        )

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        self.weights.on_welcome(welcome, body)
        self.news.set()

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Limit():
                self.outbox.on_limit(message)
            case Recall():
                self.link.send(encode(self.outbox.on_recall(message)))
                return
            case Ack():
                settled = self.outbox.on_ack(message)
                self.journal.acknowledged(self.inc, settled, message.outcome)
                self._forget(settled)
                self._settled(settled)
            case Pong():
                for key, frames in self.outbox.resend(message.missing):
                    self.link.send_bulk(key, frames)
                return
            case Announce():
                self.weights.handle(message, buffers)
                return
            case Chunk():
                self.weights.handle(message, buffers)
            case Bye():
                self.over = message.text or "the learner is done"
        self.news.set()

    def beat_frames(self) -> list[list[Payload]]:
        self.weights.beat()
        if not self._spaces[0]:
            return []
        bulk = self.link.bulk
        return [encode(ping) for ping in self.outbox.pings(self.stats, self.acting, waiting=bulk)]

    def _forget(self, ended: Sequence[Range]) -> None:
        """Removes ended unrolls from what waits to be sent."""
        for stream, lo, hi in ended if self.link.bulk else ():
            for seq in range(lo, hi):
                self.link.bulk.drop((stream, seq))

    def _settled(self, settled: Sequence[Range]) -> None:
        now, self.last_ack = time.monotonic(), time.time()
        for stream, lo, hi in settled:
            for seq in range(lo, hi):
                sent, acting = self._sent.pop((stream, seq), (now, self.acting))
                self.acks.add(now - sent)
                # The step that trained it made one version more.
                self._waits.append(max(0, self.acting - acting - 1))
