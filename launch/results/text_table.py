"""Lays out tables for a terminal."""

from collections.abc import Collection, Iterator, Sequence


def columns(rows: Sequence[Sequence[str]], *, words: Collection[int]) -> Iterator[str]:
    """Yields the rows as lines; the columns of `words` are flush left, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        filled = (cell.ljust(n) if at in words else cell.rjust(n) for at, (cell, n) in cells)
        yield "  ".join(filled).rstrip()
