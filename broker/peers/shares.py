"""Shares each step between several brokers: how many of its unrolls each may have played. Pure.

    shares       in proportion to the streams that play there, so that all streams get the same
                 credit; none where nobody plays, or where the broker does not answer
    their sum    the batch: so sampling is as far ahead of learning as with one broker
    each         divides by the learner's ranks, for every broker shares its part between them

A broker without a share has none until its first streams say so; it grants nothing meanwhile. When
one is gone the others take its part over at the next beat after the lease in which it was silent.
"""

from collections.abc import Sequence


def shares(streams: Sequence[int | None], *, batch: int, world: int = 1) -> list[int]:
    """Returns each broker's unrolls of a step. `streams`: of each broker; None = it does not
    answer. Where nobody plays yet all that answer share alike."""
    here = [at for at, count in enumerate(streams) if count] or [
        at for at, count in enumerate(streams) if count is not None
    ]
    weights = {at: streams[at] or 1 for at in here}
    units = batch // world
    most = sorted(here, key=lambda at: (-weights[at], at))[:units]  # more brokers than unrolls
    found = [0] * len(streams)
    for at in most:  # one each, so that nobody waits for ever; what is left by weight
        found[at] = 1
    left, whole = units - len(most), sum(weights[at] for at in most)
    exact = {at: left * weights[at] / whole for at in most}
    for at in most:
        found[at] += int(exact[at])
    short = units - sum(found) if most else 0
    for at in sorted(most, key=lambda at: (int(exact[at]) - exact[at], at))[:short]:
        found[at] += 1
    return [count * world for count in found]
