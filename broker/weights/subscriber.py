"""A peer's weights: announced, fetched chunk by chunk, verified, and kept until they are taken."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.broker.protocol import hello_payload
from headrace.broker.protocol.messages import (
    Acting,
    Announce,
    Buffer,
    Chunk,
    Get,
    Malformed,
    Message,
    Past,
    Welcome,
    encode,
)
from headrace.broker.transport.link import Link
from headrace.broker.weights.blobs import Blob, newest
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.past_fetch import PastFetch
from headrace.broker.weights.shelf_reader import POLL_EVERY_S, ShelfReader
from headrace.broker.weights.slow_line import SlowLine

log = logging.getLogger(__name__)


class Subscriber:
    """Gets the run and its weights for the Peer of a sampler, an evaluator or a relay.

    `shelf`: where a relay of this machine puts the weights; without one they come from the broker.
    """

    def __init__(self, link: Link, shelf: Path | None = None) -> None:
        self.run: dict[str, Any] | None = None  # the shared run, once a broker welcomed us
        self.blob: Blob | None = None  # newest weights that arrived and were not taken yet
        self.past: list[Blob] = []  # for a league: versions from before the first that we act with
        self.acting = -1  # version that the peer acts with
        self._wanted = True  # else what is announced is not fetched, only noted
        self._noted: Announce | None = None  # the newest of these
        self._link = link
        self._fetch = WeightFetch()
        self._past_fetch = PastFetch()  # while it is busy, newer ones wait
        self._shelf_reader = ShelfReader(shelf) if shelf is not None else None
        self._broker = 0  # incarnation we spoke with last
        self._line = SlowLine()

    @property
    def fetching(self) -> bool:
        """Tells whether newer weights are on their way."""
        return self._fetch.busy

    def take(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def want(self, wanted: bool) -> None:
        """Says whether what is announced is to be fetched; the newest that was not is fetched now,
        in the place of an older one that nobody took."""
        self._wanted = wanted
        if wanted and self._noted is not None:
            noted, self._noted = self._noted, None
            self.blob = self.blob if noted.version <= self._fetch.version else None
            self.handle(noted, ())

    def acts_with(self, version: int, digest: str) -> None:
        """Proves that the weights arrived: sends the digest of what the module holds now."""
        self.acting = version
        self._link.send(encode(Acting(version, digest)))

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        if self.run is None:
            run = hello_payload.unpack(body[0]) if body else None
            if not isinstance(run, dict):
                raise Malformed("run")
            self.run = run
            log.info("welcome: run %s at %s", welcome.run, self._link.endpoint)
        self._fetch.reconnected()
        if welcome.broker_inc != self._broker:
            self._broker = welcome.broker_inc
            self._past_fetch = PastFetch()
            self.starts_from(welcome.version)

    def starts_from(self, version: int) -> None:
        """Begins with another broker: its weights count, though they may be older than ours."""
        self._fetch.reset(version)
        self._noted = None
        if self._shelf_reader is not None:
            self._shelf_reader.reset()

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        """Handles announcements and chunks, and ignores all else."""
        match message:
            case Past():
                self._ask(self._past_fetch.on_announce(message))
            case Announce() if not self._wanted or self._past_fetch.busy:
                self._noted = newest([message, *filter(None, [self._noted])])
            case Announce():
                if not self._waits_for_shelf(message):
                    self._begin(message)
            case Chunk() if buffers and self._past_fetch.wants(message):
                blob, more = self._past_fetch.on_chunk(message, buffers[0])
                self._ask(more)
                self.past += [blob] if blob is not None else []
                self._begin_noted()
            case Chunk() if buffers:
                self._line.add(len(buffers[0]))
                blob, more = self._fetch.on_chunk(message, buffers[0])
                self._ask(more)
                self.blob = blob or self.blob
                if blob is not None:
                    slow = self._line.ended(self._fetch.carried, time.monotonic())
                    self._fetch.by_changes = slow
                if blob is not None and self._shelf_reader is not None:
                    self._shelf_reader.received(blob.announce.version)

    async def poll_shelf(self, news: asyncio.Event) -> None:
        """Polls the shelf while something announced is not here; a task beside the link's."""
        reader = self._shelf_reader
        while reader is not None:
            await reader.awaits.wait()
            blob, missing = reader.poll(time.monotonic())
            if blob is not None:
                self.blob = blob
                self._ask(self._fetch.skip_to(blob.announce.version))
                news.set()
            if missing is not None:
                self._begin(missing)
            await asyncio.sleep(POLL_EVERY_S)

    def beat(self) -> None:
        """Asks again for what did not come."""
        self._ask(self._past_fetch.beat())
        self._begin_noted()
        self._ask(self._fetch.ask_missing())

    def _begin_noted(self) -> None:
        """Turns to what was announced while older versions came."""
        if self._wanted and not self._past_fetch.busy:
            self.want(True)

    def _waits_for_shelf(self, announce: Announce) -> bool:
        reader, newer = self._shelf_reader, announce.version > self._fetch.version
        return reader is not None and newer and reader.announced(announce, time.monotonic())

    def _begin(self, announce: Announce) -> None:
        if not self._fetch.busy:
            self._line.begin(time.monotonic())
        self._ask(self._fetch.on_announce(announce))

    def _ask(self, gets: Sequence[Get]) -> None:
        for get in gets:
            self._link.send(encode(get))
