"""How a learner rank speaks with the broker: leases in, outcomes and weights out."""

import logging
from collections.abc import Callable, Sequence

import zmq

from broker import introduction
from broker.blobs import Blob
from broker.inbox import Inbox, Key, Verdict
from broker.journal import Journal
from broker.link import Link
from broker.wire import (
    Announce,
    Buffer,
    Bye,
    Deliver,
    Get,
    Hello,
    LearnerPong,
    Message,
    Nack,
    Outcome,
    Payload,
    Welcome,
    encode,
)

log = logging.getLogger(__name__)

# Takes an unroll into a batch, or says in a few words why it cannot be used.
Accept = Callable[[Deliver, Sequence[Buffer]], str]


class LearnerEnd:
    """The learner's Peer; lives on the receiver's event loop."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        inc: int,
        rank: int,
        world: int,
        run: str,
        shared: dict[str, object],
        spaces: tuple[str, str],
        unroll_bytes: int,
        accept: Accept,
        free: Callable[[], int],
        journal: Journal,
        context: "zmq.Context[zmq.Socket[bytes]]",
    ) -> None:
        self.inc = inc
        self.link = Link(endpoint, self, context)
        self.inbox = Inbox(inc=inc)
        self.version = 0  # trained up to
        self.welcome_version: int | None = None  # where the broker says we continue
        self.stats: dict[str, float] = {}  # sent along with every beat
        self.rejected = 0
        self._hello = (name, rank, world)
        self._run = run
        self._shared = shared
        self._spaces = spaces
        self._unroll_bytes = unroll_bytes
        self._accept = accept
        self._free = free  # unrolls that fit into batches now, beyond those held
        self._journal = journal
        self._blob: Blob | None = None  # the weights everybody should have

    def trained(self, keys: Sequence[Key], *, version: int) -> None:
        """An optimiser step used these unrolls."""
        self.version = max(self.version, version)
        self._journal.trained(list(keys), version)
        self.link.send(encode(self.inbox.trained(keys, version=self.version, free=self._free())))

    def reject(self, keys: Sequence[Key], reason: str) -> None:
        """A whole batch that cannot be used, or one unroll."""
        self.rejected += len(keys)
        self._nack(self.inbox.give_up(keys), Outcome.REJECTED, reason)

    def publish(self, blob: Blob) -> None:
        """New weights. Announce, and send the first chunk unasked."""
        self._blob = blob
        self._announce(blob)

    def leave(self, *, final: bool, text: str) -> None:
        self.link.send(encode(Bye(self.inc, final, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def greet(self) -> list[Payload]:
        name, rank, world = self._hello
        hello = Hello(
            "learner", name, self.inc, run=self._run, spaces=self._spaces[0],
            rank=rank, world=world, version=self.version,
        )  # fmt: skip
        body = introduction.Introduction(
            shared=self._shared, spaces=self._spaces[1], unroll_bytes=self._unroll_bytes,
            trained=self.inbox.windows(), held=self.inbox.held(), want=self._free(),
        )  # fmt: skip
        return encode(hello, introduction.encode(body))

    def welcomed(self, welcome: Welcome, _body: Sequence[Buffer]) -> None:
        if welcome.version > self.version and self._blob is not None:
            # Samplers act with what an older learner called newer. Ours are the newest there are,
            # and must be called so: credit may ask for that version before our next step.
            blob = self._blob
            self._blob = Blob.of(welcome.version, blob.announce.layout, blob.body)
        self.version = max(self.version, welcome.version)
        self.welcome_version = welcome.version
        if self._blob is not None:
            self._announce(self._blob)

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Deliver():
                self._delivered(message, buffers)
            case LearnerPong() if self._blob is not None:
                if message.weights < self._blob.announce.version:
                    self._announce(self._blob)
            case Get() if self._blob is not None and message.version == self._blob.announce.version:
                for chunk, body in self._blob.chunks(message):
                    self.link.send(encode(chunk, body))

    def beats(self) -> list[list[Payload]]:
        ping = self.inbox.ping(version=self.version, free=self._free(), stats=self.stats)
        return [encode(ping)]

    def _delivered(self, message: Deliver, buffers: Sequence[Buffer]) -> None:
        verdict = self.inbox.deliver(message)
        key = (message.inc, message.stream, message.seq)
        tags = ((message.tag, message.tag + 1),)
        if verdict is Verdict.TRAINED:
            self._nack(tags, Outcome.DUPLICATE, "trained before")
        elif verdict is Verdict.NEW:
            if self._free() <= 0:
                self._nack(self.inbox.give_up([key]), Outcome.ABANDONED, "no room")
                return
            reason = self._accept(message, buffers)
            if reason:
                log.warning("unroll of %s refused: %s", message.actor, reason)
                self.reject([key], reason)

    def _nack(self, tags: tuple[tuple[int, int], ...], outcome: Outcome, reason: str) -> None:
        self.link.send(encode(Nack(self.inc, tags, outcome, reason[:200])))

    def _announce(self, blob: Blob) -> None:
        announce: Announce = blob.announce
        self.link.send(encode(announce))
        chunk, body = blob.first()
        self.link.send(encode(chunk, body))
