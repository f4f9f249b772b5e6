"""The learner rank's end: leases in, outcomes and weights out."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import zmq
from msgspec.structs import replace

from headrace.broker.journal.journal import Journal
from headrace.broker.peer_errors import UnreportedErrors
from headrace.broker.peers.evaluations import HeardEvaluations
from headrace.broker.peers.inbox import Inbox, Key, Verdict
from headrace.broker.peers.objections import OBJECTIONS, Objection
from headrace.broker.protocol import hello_payload
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import (
    Buffer,
    Bye,
    Deliver,
    Get,
    GetDelta,
    Hello,
    LearnerPong,
    Message,
    Nack,
    Outcome,
    Payload,
    Status,
    Watch,
    Welcome,
    encode,
)
from headrace.broker.security import keys
from headrace.broker.transport import endpoints
from headrace.broker.transport.link import Link
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.kept_versions import KeptVersions

log = logging.getLogger(__name__)

# Takes an unroll into a batch, or says why it cannot be used.
Accept = Callable[[Deliver, Sequence[Buffer]], Objection | None]


class LearnerEnd:
    """Speaks with the broker for the learner, on the receiver's event loop."""

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        payload: HelloPayload,
        *,
        accept: Accept,
        free: Callable[[], int],
        share: Callable[[], int | None] = lambda: None,
        journal: Journal,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key: keys.Key | None = None,
        reports: UnreportedErrors | None = None,
        evaluations: HeardEvaluations | None = None,
    ) -> None:
        self.inc = hello.inc
        self.link = Link(endpoint, self, context, key=key)
        self.link.reports = reports
        self.inbox = Inbox(inc=hello.inc)
        self.version = 0  # trained up to
        self.welcome_version: int | None = None  # where the broker says we continue
        self.stats: dict[str, float] = {}  # sent along with every beat
        # Unrolls, each counted once however often its Deliver came. What was delivered is trained,
        # nacked or held, at every moment.
        self.delivered = 0
        self.trained_unrolls = 0
        self.objections: Counter[str] = Counter(dict.fromkeys(OBJECTIONS, 0))  # to rejected ones
        self.given_back = 0  # there was no room
        self.duplicates = 0  # delivered again after they had been trained on
        self._hello, self._payload = hello, payload  # without what changes; see hello_frames
        self._evaluations = evaluations  # asked for with every beat; None = nobody wants them
        self._accept = accept
        self._free = free  # unrolls that fit into batches now, beyond those held
        self._share = share  # unrolls of each step that come from this broker; None = as it was
        self.streams = 0  # that play at this broker
        self._journal = journal
        self._blob: Blob | None = None  # the weights all peers should have
        self._kept = KeptVersions()  # those and some before, for Gets that are under way
        self._fetched = -1  # version that the broker asked for last; -1 = none yet
        self._base = -1  # the one whose changes it asked for; -1 = for whole chunks
        self._far = not endpoints.stays_here(endpoint)  # else changes cost more than they save
        self._quiet_until = 0.0  # no further line about refused unrolls before then
        self._known = -1  # newest weights that the broker says it has whole
        journal.joins("learner", hello.inc, hello.name)

    @property
    def heard(self) -> bool:
        """Tells whether the broker has what we published last."""
        return self._blob is None or self._known >= self._blob.announce.version

    def unaccounted(self) -> int:
        """Returns delivered - trained - nacked - held; anything but 0 is our bug."""
        nacked = self.rejected + self.given_back
        return self.delivered - self.trained_unrolls - nacked - len(self.inbox)

    def begins(self, version: int) -> None:
        """Notes the version trained up to at the start: 0, or what a checkpoint says."""
        self.version = version
        self._journal.begins(version)

    def trained(self, keys: Sequence[Key], *, version: int) -> None:
        """Settles unrolls that an optimiser step used."""
        self.version = max(self.version, version)
        self._journal.trained(keys, version)
        self.trained_unrolls += len(keys)
        for done in self.inbox.trained(keys, version=self.version, free=self._free()):
            self.link.send(encode(done))

    @property
    def rejected(self) -> int:
        return sum(self.objections.values())

    def reject(self, keys: Sequence[Key], objection: Objection) -> None:
        """Settles unrolls that cannot be used."""
        self._journal.rejected(keys)
        self.objections[objection.reason] += len(keys)
        tags = self.inbox.give_up(keys)
        self._nack(tags, Outcome.REJECTED, objection.words, blame=objection.blame)

    def publish(self, blob: Blob) -> None:
        """Announces new weights; sends their first chunk unasked, unless changes are wanted."""
        self._blob = blob
        self._kept.add(blob, (self._fetched,), {self._base} - {-1})
        self._announce(blob)

    def leave(self, *, final: bool, text: str) -> None:
        self.link.leave(encode(Bye(self.inc, final, text)))

    # ---- Peer -----------------------------------------------------------------------------------

    def hello_frames(self) -> list[Payload]:
        payload = replace(
            self._payload, trained=self.inbox.windows(), held=self.inbox.held(), want=self._free()
        )
        hello = replace(self._hello, version=self.version)
        return encode(hello, hello_payload.encode(payload))

    def on_welcome(self, welcome: Welcome, _body: Sequence[Buffer]) -> None:
        self._known = self._base = -1  # it may be another broker
        # A later HELLO is not that of a new learner.
        self._hello = replace(self._hello, take_over=False, fresh=True)
        if self._evaluations is not None and not self.version:
            # Those of versions before were of another learner's weights.
            self._evaluations.since = welcome.version + 1 if welcome.version else 0
        if welcome.version > self.version and self._blob is not None:
            # Samplers act with what an older learner called newer. Ours are the newest there are,
            # and must be called so: credit may ask for that version before our next step.
            blob = self._blob
            self._blob = Blob.of(welcome.version, blob.announce.layout, blob.body)
            self._kept.add(self._blob, (self._fetched,))
        self.version = max(self.version, welcome.version)
        self.welcome_version = welcome.version
        if self._blob is not None:
            self._announce(self._blob)

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        match message:
            case Deliver():
                self._delivered(message, buffers)
            case LearnerPong():
                self._known, self.streams = message.weights, message.streams
                if self._blob is not None and not self.heard:
                    # Its chunks may be on their way still: what is missing will be asked for.
                    self.link.send(encode(self._blob.announce))
            case Get():
                newer = self._kept.newer_instead(message)
                if newer is not None:
                    self.link.send(encode(newer))
                self._fetched = message.version if newer is None else newer.version
                self._base = message.base if isinstance(message, GetDelta) and self._far else -1
                get = GetDelta(self._fetched, message.lo, message.hi, self._base)
                for chunk, body in self._kept.chunks(get):
                    self.link.send_bulk((chunk.version, chunk.index), encode(chunk, body))
            case Status() if buffers and self._evaluations is not None:
                status = hello_payload.unpack(buffers[0])
                if line := self._evaluations.hear(status, time.monotonic()):
                    log.warning("%s", line)

    def beat_frames(self) -> list[list[Payload]]:
        stats = {**self.stats, "clock": time.time()}
        free, share = self._free(), self._share()
        ping = self.inbox.ping(version=self.version, free=free, stats=stats, share=share)
        return [encode(ping), encode(Watch())] if self._evaluations is not None else [encode(ping)]

    def _delivered(self, message: Deliver, buffers: Sequence[Buffer]) -> None:
        room = self._free()
        verdict = self.inbox.deliver(message)
        key = (message.inc, message.stream, message.seq)
        tags = ((message.tag, message.tag + 1),)
        if verdict is Verdict.TRAINED:
            self.duplicates += 1
            self._nack([tags], Outcome.DUPLICATE, "trained before")
        elif verdict is Verdict.NEW:
            self.delivered += 1
            if room <= 0:
                # It was on its way when our last HELLO was sent, and the broker counts from there.
                # Counted by us alone, we would want one too many until the next HELLO.
                self.inbox.received -= 1
                self.given_back += 1
                self._nack(self.inbox.give_up([key]), Outcome.ABANDONED, "no room")
                return
            objection = self._accept(message, buffers)
            if objection is not None:
                self._complain(message.actor, objection.words)
                self.reject([key], objection)

    def _complain(self, sampler: str, reason: str) -> None:
        """Logs a bad unroll at most once a second; each of them is counted."""
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + 1.0
            more = f" ({self.rejected} refused before)" if self.rejected else ""
            log.warning("unroll of %s refused: %s%s", sampler, reason, more)

    def _nack(
        self,
        parts: Sequence[tuple[tuple[int, int], ...]],
        outcome: Outcome,
        reason: str,
        *,
        blame: bool = False,
    ) -> None:
        for tags in parts:
            self.link.send(encode(Nack(self.inc, tags, outcome, reason[:200], blame)))

    def _announce(self, blob: Blob) -> None:
        self.link.send(encode(blob.announce))
        # Else the broker has others to come first, or wants what changed: it asks for it then.
        if not self.link.bulk and self._base < 0:
            chunk, body = blob.first()
            self.link.send_bulk((chunk.version, chunk.index), encode(chunk, body))
