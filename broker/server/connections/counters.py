"""Counts what the broker's sockets and its event loop do; read at a scrape (metrics.py)."""

from collections import Counter
from typing import Final

from headrace.broker.histograms import Buckets
from headrace.broker.protocol.messages import Message, Refusal
from headrace.broker.server.connections.rate_limits import REASONS

_MOST_LAG: Final = 1000
_LAGS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Counters:
    """Counts what one broker process does. The numbers only grow."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, type[Message]]] = Counter()  # (dir, type)
        self.bytes: Counter[str] = Counter({"in": 0, "out": 0})  # dir
        self.unroll_bytes = 0  # of unrolls that came in, each as often as it came
        self.dropped: Counter[str] = Counter(dict.fromkeys(REASONS, 0))  # messages not taken
        self.refused: Counter[str] = Counter({code.name.lower(): 0 for code in Refusal})
        self.peer_full = 0  # sends that a peer had no room for
        self.lags = Buckets(_LAGS)  # versions between acting and dispatch
        self.sizes = Buckets([1024 * 4**n for n in range(8)])  # bytes of messages that came in
        self.loop_lag = Buckets([0.0001 * 4**n for n in range(8)])  # seconds that a tick was late
        self.spared_lines = 0  # lines that the log was spared

    def add_lag(self, versions: int) -> None:
        """Counts one unroll at dispatch. A sampler may say anything: the sum stays a figure."""
        self.lags.add(min(max(versions, 0), _MOST_LAG))

    def count(self, way: str, kind: type[Message], size: int) -> None:
        """Counts a message that comes in or goes out."""
        self.messages[way, kind] += 1
        self.bytes[way] += size
        if way == "in":
            self.sizes.add(size)
