"""What the broker sends, counted. What a socket does not take is dropped, or goes back: the server
knows which."""

from collections.abc import Sequence

from broker import wire
from broker.mailbox import Mailbox
from broker.metrics import BrokerMetrics
from broker.pipes import MOST_BULK, Pipes
from broker.wire import Chunk, Deliver, Message, Payload, Refusal

_MOST_WORDS = 1000
_AROUND = 128  # bytes of a chunk's message beside the chunk, and more


class Post:
    """The ROUTER's way out."""

    def __init__(self, router: Mailbox, metrics: BrokerMetrics, *, queue_bytes: int) -> None:
        self.pipes = Pipes()
        self._router = router
        self._metrics = metrics
        self._queue_bytes = queue_bytes  # what learners do not read may be as much as the queue

    def has_room(self, route: bytes, nbytes: int) -> bool:
        """Says whether a chunk of so many bytes may go there now; `pipes.drained` tells when."""
        return self.pipes.has_room(route, nbytes + _AROUND, bulk=True)

    def send(self, route: bytes, message: Message, *buffers: Payload) -> bool:
        """False = there was no room for it, or nobody there."""
        frames = [route, *wire.encode(message, *buffers)]
        size = sum(map(len, frames))
        bulk = isinstance(message, Chunk | Deliver)
        queue = self._queue_bytes if isinstance(message, Deliver) else 0
        pipes = self.pipes
        sent = pipes.has_room(route, size, bulk=bulk, most=MOST_BULK + queue, in_all=queue)
        if sent:
            sent = self._router.send(frames, pipes.count(route, size, bulk=bulk))
        if sent:
            self._metrics.count("out", type(message), size)
        else:
            self._metrics.peer_full += 1
        return sent

    def send_all(self, route: bytes, messages: Sequence[Message]) -> None:
        for message in messages:
            self.send(route, message)

    def refuse(self, route: bytes, code: Refusal, text: str) -> None:
        self._metrics.refused[code.name.lower()] += 1
        # The words of two environments may be long; what counts stands in front.
        self.send(route, wire.Refuse(code, text[:_MOST_WORDS]))
