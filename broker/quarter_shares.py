"""Tells how evenly a total is divided: the share of each quarter of its parts. Pure."""

from collections.abc import Sequence
from itertools import accumulate


def quarter_shares(counts: Sequence[float]) -> tuple[float, ...]:
    """Returns the share of the total that each quarter of the counts makes up, the least first; ()
    when there is nothing to compare. A count that lies in two quarters is divided between them."""
    below = (0.0, *accumulate(sorted(counts)))
    total = below[-1]
    if len(counts) < 2 or not total:
        return ()

    def up_to(quarter: int) -> float:
        whole, part = divmod(len(counts) * quarter, 4)
        rest = below[whole + 1] - below[whole] if part else 0.0
        return below[whole] + rest * part / 4

    return tuple((up_to(at + 1) - up_to(at)) / total for at in range(4))
