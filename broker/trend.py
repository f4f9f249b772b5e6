"""A curve that is kept for whoever looks: bounded, by leaving out every other point. Pure."""

from typing import Final

_MOST: Final = 256


class Trend:
    """Points in the order of x. The distance kept between them doubles when there are too many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._apart = 0.0  # a point nearer to the last one is not kept

    def add(self, x: float, y: float) -> None:
        points = self._points
        if points and x < points[-1][0]:  # an older checkpoint: what follows was undone
            points[:] = [point for point in points if point[0] < x]
        if points and (x == points[-1][0] or x - points[-1][0] < self._apart):
            return
        points.append((x, y))
        if len(points) > _MOST:
            del points[1::2]
            self._apart = (points[-1][0] - points[0][0]) / len(points)

    def points(self) -> list[tuple[float, float]]:
        return self._points.copy()
