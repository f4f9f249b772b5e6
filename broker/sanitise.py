"""Makes what peers say of themselves safe to keep, to sum up and to print. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.broker.protocol.messages import Unroll

# Numbers of one peer that are kept; the rest is left out.
MOST_NUMBERS: Final = 96
_MOST_NAME: Final = 64
# Beyond it a sum of many would not be finite.
_MOST: Final = 1e300
_MOST_WORDS: Final = 200


def numbers(stats: Mapping[str, float]) -> dict[str, float]:
    """Keeps the finite numbers, at most MOST_NUMBERS, with names that can be shown."""
    kept = {
        name: value
        for name, value in stats.items()
        if -_MOST < value < _MOST and len(name) <= _MOST_NAME and name.isprintable()
    }
    if len(kept) <= MOST_NUMBERS:
        return kept
    return {name: kept[name] for name in list(kept)[:MOST_NUMBERS]}


def total(of_all: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums figures over peers; of more names than one may have, those that most of them say."""
    said = Counter(name for stats in of_all for name in stats)
    names = [name for name, _ in said.most_common(MOST_NUMBERS)]
    sums = {name: sum(stats.get(name, 0.0) for stats in of_all) for name in names}
    return {name: value for name, value in sums.items() if math.isfinite(value)}


def words(text: str, most: int = _MOST_WORDS) -> str:
    """Returns a name or a farewell as one line of the log: no control characters, not too long."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def honest(unroll: Unroll) -> Unroll | None:
    """Returns the unroll with its plausible episodes; None = its figures contradict each other.

    An environment may well return a sum that is not finite: that spoils a mean, not the unroll.
    """
    if unroll.version_min > unroll.version_max:
        return None
    episodes = unroll.episodes
    if not episodes or all(-_MOST < reward < _MOST for _, reward, _ in episodes):
        return unroll
    finite = tuple(one for one in episodes if -_MOST < one[1] < _MOST)
    return msgspec.structs.replace(unroll, episodes=finite)
