"""A learner rank's connections: one with each broker of the run, to the receiver as if it were one.

    broker A  --unrolls-->  LearnerEnd A  \
                                           >--  batches, trained on, weights to all
    broker B  --unrolls-->  LearnerEnd B  /

A sampler plays for one broker as long as it lives, so no unroll is ever at two. Rank 0 says how
many unrolls of each step each broker may have played: see shares.py.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.broker.peers.inbox import Key
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.objections import Objection
from headrace.broker.peers.shares import shares
from headrace.broker.transport.link import RefusedError
from headrace.broker.weights.blobs import Blob

log = logging.getLogger(__name__)

# Until a broker says otherwise, for how long the others wait for one that does not answer.
_PATIENCE_S = 10.0

Windows = Sequence[tuple[int, int, Sequence[Sequence[int]]]]


class LearnerEnds:
    """Speaks with all brokers of the run."""

    def __init__(
        self,
        make: Sequence[Callable[..., LearnerEnd]],
        *,
        rank: int,
        world: int,
        batch: int,
        room: Callable[[], int],
        **given: Any,
    ) -> None:
        self._rank, self._world, self._batch, self._room = rank, world, batch, room
        self._places = room()  # of this rank's batches: enough for each broker, all free now
        self._first_at = 0.0  # when the first broker answered
        self._taking_part: list[bool] = []  # which brokers have a share, as logged last
        self.ends = [
            one(free=partial(self._free, at), share=partial(self._share, at), **given)
            for at, one in enumerate(make)
        ]

    # ---- to and from the brokers ----------------------------------------------------------------

    async def run(self) -> None:
        """Ends only by cancellation, or by RefusedError."""
        async with asyncio.TaskGroup() as group:
            for end in self.ends:
                group.create_task(end.link.run(), name="link")

    def begins(self, version: int, windows: Windows) -> None:
        """Notes what was trained before: up to which version, and what might come again."""
        self.ends[0].begins(version)  # it stands once in the journal, which all of them write
        for end in self.ends:
            end.version = version
            end.inbox.restore([(inc, stream, spans) for inc, stream, spans in windows])

    def trained(self, keys: Sequence[Key], *, version: int) -> None:
        """Settles unrolls that an optimiser step used."""
        for end in self.ends:
            end.trained(end.inbox.those_held(keys), version=version)

    def reject(self, keys: Sequence[Key], objection: Objection) -> None:
        """Settles unrolls that cannot be used."""
        for end in self.ends:
            if held := end.inbox.those_held(keys):
                end.reject(held, objection)

    def publish(self, blob: Blob) -> None:
        for end in self.ends:
            end.publish(blob)

    def beat(self) -> None:
        """Tells the brokers at once what else they would hear with the next beat."""
        for end in self.ends:
            for frames in end.beat_frames():
                end.link.send(frames)

    def leave(self, *, final: bool, text: str) -> None:
        for end in self.ends:
            end.leave(final=final, text=text)

    def windows(self) -> Windows:
        """Lists, for the checkpoint, what was trained and might come again."""
        found: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        for end in self.ends:  # each began with the same; the one that has more has gone on
            for inc, stream, spans in end.inbox.windows():
                found[inc, stream] = max(found.get((inc, stream), ()), spans, key=_newest)
        return tuple((*stream, spans) for stream, spans in found.items())

    # ---- as one ---------------------------------------------------------------------------------

    @property
    def welcome_version(self) -> int | None:
        """Returns where the run continues: when all brokers have said it, or some have and the
        others do not answer; None = not known yet."""
        told = [end.welcome_version for end in self.ends if end.welcome_version is not None]
        if not told:
            return None
        self._first_at = self._first_at or time.monotonic()
        missing = len(told) < len(self.ends)
        return None if missing and time.monotonic() < self._first_at + _PATIENCE_S else max(told)

    @property
    def heard(self) -> bool:
        """Tells whether every broker that answers has what we published last."""
        return all(end.heard for end in self.ends if end.link.welcome is not None)

    def unheard(self) -> str:
        """Returns which brokers do not answer."""
        return ", ".join(end.link.endpoint for end in self.ends if end.link.welcome is None)

    def set_stats(self, stats: dict[str, float]) -> None:
        for end in self.ends:
            end.stats = stats

    @property
    def loop_turns(self) -> int:
        return sum(end.link.loop_turns for end in self.ends)

    @property
    def reconnects(self) -> int:
        return sum(end.link.reconnects for end in self.ends)

    @property
    def delivered(self) -> int:
        return sum(end.delivered for end in self.ends)

    @property
    def held(self) -> int:
        return sum(len(end.inbox) for end in self.ends)

    def unaccounted(self) -> int:
        """Returns delivered - trained - nacked - held; anything but 0 is our bug."""
        return sum(end.unaccounted() for end in self.ends)

    @property
    def trained_unrolls(self) -> int:
        return sum(end.trained_unrolls for end in self.ends)

    @property
    def given_back(self) -> int:
        return sum(end.given_back for end in self.ends)

    @property
    def duplicates(self) -> int:
        return sum(end.duplicates for end in self.ends)

    @property
    def objections(self) -> Counter[str]:
        """Counts rejected unrolls by reason."""
        total: Counter[str] = Counter(self.ends[0].objections)
        for end in self.ends[1:]:
            total.update(end.objections)
        return total

    # ---- inside ---------------------------------------------------------------------------------

    def _shares(self) -> list[int]:
        """Returns how many unrolls of each step come from each broker."""
        streams = [end.streams if end.link.welcome is not None else None for end in self.ends]
        return shares(streams, batch=self._batch, world=self._world)

    def _share(self, at: int) -> int | None:
        """Returns what rank 0 tells a broker; None = nothing: it is alone, or not all have had the
        time to answer."""
        if len(self.ends) == 1:
            return None
        self._check_apart()
        if self._rank or self.welcome_version is None:
            return None
        found = self._shares()
        if (taking_part := [share > 0 for share in found]) != self._taking_part:
            self._taking_part = taking_part
            named = zip(found, self.ends, strict=True)
            log.info("of each step: %s", ", ".join(f"{n} from {e.link.endpoint}" for n, e in named))
        return found[at]

    def _check_apart(self) -> None:
        """Raises RefusedError where two addresses lead to one broker."""
        found: dict[int, str] = {}
        for end in self.ends:
            if end.link.welcome is not None:
                other = found.setdefault(end.link.welcome.broker_inc, end.link.endpoint)
                if other != end.link.endpoint:
                    raise RefusedError(f"{other} and {end.link.endpoint} are one broker")

    def _free(self, at: int) -> int:
        """Returns how many more unrolls a broker may send. Each has a part of the room for itself:
        what was offered to one cannot be taken back, and would be missing for the others."""
        return min(self._room(), self._places // len(self.ends) - len(self.ends[at].inbox))


def _newest(spans: tuple[tuple[int, int], ...]) -> int:
    return spans[-1][1] if spans else -1
