"""What the broker sends, counted. What a socket does not take is dropped, or goes back: the server
knows which."""

from collections.abc import Sequence

from broker import wire
from broker.mailbox import Mailbox
from broker.metrics import BrokerMetrics
from broker.wire import Message, Payload, Refusal

_MOST_WORDS = 1000


class Post:
    """The ROUTER's way out."""

    def __init__(self, router: Mailbox, metrics: BrokerMetrics) -> None:
        self._router = router
        self._metrics = metrics

    def send(self, route: bytes, message: Message, *buffers: Payload) -> bool:
        """False = there was no room for it, or nobody there."""
        frames = [route, *wire.encode(message, *buffers)]
        sent = self._router.send(frames)
        if sent:
            self._metrics.count("out", type(message), sum(map(len, frames)))
        else:
            self._metrics.peer_full += 1
        return sent

    def reaches(self, route: bytes, message: Message) -> bool:
        """Says something harmless; False = its connection is closed."""
        return self._router.reaches([route, *wire.encode(message)])

    def send_all(self, route: bytes, messages: Sequence[Message]) -> None:
        for message in messages:
            self.send(route, message)

    def refuse(self, route: bytes, code: Refusal, text: str) -> None:
        self._metrics.refused[code.name.lower()] += 1
        # The words of two environments may be long; what counts stands in front.
        self.send(route, wire.Refuse(code, text[:_MOST_WORDS]))
