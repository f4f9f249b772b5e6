"""A curve that grows without end, in bounded memory. Pure."""

from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MOST_POINTS: Final = 256


class DecimatedCurve(Generic[T]):
    """Keeps a curve of at most 256 points in the order of x: the distance between them doubles when
    there are too many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, T]] = []
        self._apart = 0.0  # a point nearer to the last one is not kept

    def add(self, x: float, y: T) -> None:
        points = self._points
        if points and x < points[-1][0]:  # an older checkpoint: what follows was undone
            points[:] = [point for point in points if point[0] < x]
        if points and (x == points[-1][0] or x - points[-1][0] < self._apart):
            return
        points.append((x, y))
        if len(points) > _MOST_POINTS:
            del points[1::2]
            self._apart = (points[-1][0] - points[0][0]) / len(points)

    def points(self) -> list[tuple[float, T]]:
        return self._points.copy()
