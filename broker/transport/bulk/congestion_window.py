"""Decides how many bytes may be under way on one line in one direction, pure.

Beats, credit and acknowledgements wait behind the bulk that was sent before them. So no more is put
on a line than it carries in a moment (`delay_s`), however large the kernel's and the routers'
buffers are. What is under way is known from marks that the other end answers, so the line's rate
need not be: the bytes in front of a mark took as long as the mark did.

    delay   < 1/4   twice as much each time: the line is not full
            < 1/2   1/8 more each time
            < 1     8 KiB more each time: so connections that share a line come to equal parts
            more    as much as would have taken 0.85, at once
"""

import math
from typing import Final

# Before anything is known: 4 s of a line of 64 kbit/s.
_FIRST: Final = 32 << 10
_FEWEST: Final = 8 << 10
_MOST: Final = 64 << 20
_STEP: Final = 8 << 10
_AFTER_FALL: Final = 0.85  # of what is allowed
# A piece is this part of what may be under way, and no smaller: its header is 60 bytes.
_PARTS: Final = 4
_FEWEST_PIECE: Final = 4 << 10
_LEASE_PARTS: Final = 6


class CongestionWindow:
    """Holds how many bytes may be under way on one connection; a new connection begins with a new
    one."""

    def __init__(self, lease_s: float) -> None:
        self.delay_s = lease_s / _LEASE_PARTS  # what is under way takes no longer
        self._resize(_FIRST)
        self._fell = False  # it was too large once
        self._least_s = math.inf  # that any mark took: the line's own length

    def _resize(self, size: int) -> None:
        self.size = size  # bytes that may be under way
        # The largest message, or part of one, that goes at once.
        self.piece = max(_FEWEST_PIECE, size // _PARTS)

    def reached(
        self, *, nbytes: int, under_way: int, delay_s: float, back_s: float, short: bool
    ) -> bool:
        """Takes the answer to a mark. `nbytes`: arrived since the mark before; `under_way`: when
        the mark went out, all of it in front of the mark; `delay_s`: until it was there; `back_s`:
        that its answer waited, behind bulk of the other direction; `short`: more would have gone,
        had there been room. True = the size fell: what was sent before says nothing about the new
        one."""
        self._least_s = min(self._least_s, delay_s)
        if delay_s > self.delay_s:
            # What is under way lasts until the answer is back, so that the line is never empty.
            part = (_AFTER_FALL * self.delay_s + back_s) / (delay_s + back_s)
            # Another piece did not fit; with large ones, or small windows, that is not the same.
            fits = int(part * min(self.size, under_way + short * self.piece))
            fell, self._fell = fits < self.size, True
            self._resize(max(_FEWEST, min(self.size, fits)))
            return fell
        # A quarter of it that took less than a quarter of the time shows that all of it fits; so on
        # a fast line it grows beyond need, and marks are few.
        if short or _PARTS * under_way >= self.size:
            # Once it fell, delays tell what others have under way, too.
            beyond_s = delay_s if self._fell else delay_s - self._least_s
            if beyond_s < self.delay_s / 4:
                step = self.size
            elif not short:
                step = 0
            elif delay_s < self.delay_s / 2:
                step = self.size // 8
            else:
                step = min(_STEP, self.size // 4)
            # In a whole round, which brings `size` bytes.
            self._resize(min(_MOST, self.size + step * nbytes // self.size))
        return False
