"""The learner's end of the ledger, pure: leases it holds, and what it has trained on.

    an unroll     DELIVER -> held -> trained (remembered, DONE)
                               |
                               +--> given back or rejected (NACK)

The memory of what was trained makes a second delivery harmless; it goes into the checkpoint.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from headrace.broker.protocol.messages import MAX_ENTRIES, Deliver, Done, LearnerPing, parts, ranges

Key = tuple[int, int, int]  # incarnation, stream, seq
# Streams remembered, least recently used forgotten first: a dead sampler never sends again.
_MOST_STREAMS = 65536
# Second copies come within a few beats; one that comes later is counted as if it took a place, and
# what is given beyond our room goes back.
_MOST_COUNTED = 16384
# Tags below it, and the end of a range of them, are integers of the wire.
_MOST_TAG = 1 << 63


class Verdict(Enum):
    NEW = auto()  # put it into a batch
    HELD = auto()  # the copy of one that is here, or no lease at all; nothing to do
    TRAINED = auto()  # used before: NACK as duplicate, the broker acknowledges it as trained


class Inbox:
    """Holds the leases of one learner rank."""

    def __init__(self, *, inc: int) -> None:
        self.inc = inc
        # Deliveries since the last HELLO: what `want` counts from. A second copy took no place of
        # its own, whether the first is held or was trained on meanwhile.
        self.received = 0
        # The latest of these, in order; a plain dict finds its first key ever more slowly.
        self._counted: OrderedDict[Key, None] = OrderedDict()
        self._held: dict[int, Key] = {}  # by tag
        self._tags: dict[Key, int] = {}
        self._max_tag = -1
        self._trained: dict[tuple[int, int], set[int]] = {}  # seqs a sampler might send again

    def deliver(self, message: Deliver) -> Verdict:
        key = (message.inc, message.stream, message.seq)
        if not 0 <= message.tag < _MOST_TAG or self._held.get(message.tag, key) != key:
            return Verdict.HELD  # a name that cannot be answered, or that another unroll has
        old = self._tags.get(key)
        if old is None and key not in self._counted:
            self._count(key)
        self._max_tag = max(self._max_tag, message.tag)
        window = self._window(message.inc, message.stream)
        if message.seq in window:
            return Verdict.TRAINED
        if window and min(window) < message.floor:
            window -= {seq for seq in window if seq < message.floor}
        if old is not None:  # the broker took it for lost; the newest lease counts
            del self._held[old]
        self._held[message.tag] = key
        self._tags[key] = message.tag
        return Verdict.NEW if old is None else Verdict.HELD

    def __len__(self) -> int:
        """Counts the unrolls held."""
        return len(self._held)

    def trained(self, keys: Iterable[Key], *, version: int, free: int) -> list[Done]:
        """Remembers unrolls that an optimiser step used; returns what to send. One message when
        they lie together; with several ranks they do not, and a header holds only so many
        ranges."""
        tags = []
        for key in keys:
            self._window(key[0], key[1]).add(key[2])
            tags.append(self._release(key))
        want = self.received + free
        # At least one message, so that `want` and version are always sent.
        return [Done(self.inc, version, want, part) for part in parts(ranges(sorted(tags))) or [()]]

    def those_held(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Returns those of the unrolls that are held here."""
        return [key for key in keys if key in self._tags]

    def give_up(self, keys: Iterable[Key]) -> list[tuple[tuple[int, int], ...]]:
        """Ends leases without a step; returns their tags, for one NACK each."""
        return parts(ranges(sorted(self._release(key) for key in keys)))

    def held(self) -> tuple[tuple[int, int, int, int], ...]:
        """Lists, for HELLO, the leases held: (tag, incarnation, stream, seq)."""
        self.received = 0
        self._counted.clear()
        # Another broker counts from elsewhere: only what it delivers says how far it has come.
        self._max_tag = -1
        return tuple((tag, *key) for tag, key in self._held.items())

    def ping(
        self, *, version: int, free: int, stats: dict[str, float], share: int | None = None
    ) -> LearnerPing:
        tags = ranges(sorted(self._held))
        said = tags[:MAX_ENTRIES]
        # What does not fit must not look lost: max_tag is then the last tag that is named.
        max_tag = self._max_tag if said == tags else min(self._max_tag, said[-1][1] - 1)
        return LearnerPing(self.inc, version, self.received + free, max_tag, said, stats, share)

    def windows(self) -> tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]:
        """Lists, for HELLO and the checkpoint, what was trained and might come again."""
        return tuple(
            (inc, stream, ranges(sorted(seqs)))
            for (inc, stream), seqs in self._trained.items()
            if seqs
        )

    def restore(self, windows: Iterable[tuple[int, int, Sequence[Sequence[int]]]]) -> None:
        for inc, stream, spans in windows:
            window = self._window(inc, stream)
            for lo, hi in spans:
                window.update(range(lo, hi))

    def _count(self, key: Key) -> None:
        self.received += 1
        self._counted[key] = None
        if len(self._counted) > _MOST_COUNTED:
            self._counted.popitem(last=False)

    def _release(self, key: Key) -> int:
        tag = self._tags.pop(key)
        del self._held[tag]
        return tag

    def _window(self, inc: int, stream: int) -> set[int]:
        window = self._trained.pop((inc, stream), None)
        if window is None:
            window = set()
            if len(self._trained) >= _MOST_STREAMS:
                del self._trained[next(iter(self._trained))]
        self._trained[inc, stream] = window  # last in order: the least recently used comes first
        return window
