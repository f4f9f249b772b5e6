"""Bytes of a fuzzer as decisions: the same bytes always mean the same thing."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Reader:
    """Takes from the front; an empty one gives zeros, so every input means something."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def rest(self) -> bytes:
        return self.take(max(0, self.left))

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.byte() % len(choices)]
