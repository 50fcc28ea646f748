"""Places for the labels of a figure's points: near them, on no other label, point or whisker."""

import math
from collections.abc import Sequence
from typing import NamedTuple

DISTANCES = (7, 12, 20, 30, 42, 56, 72, 90, 110, 135, 160, 190)  # from the point, in pixels
DIRECTIONS = 24
REACH = 4.0  # pixels: a line that comes as near to another point seems to belong to it
# What each fault costs, in pixels of distance
ON_LABEL, OUTSIDE, ON_MARK, CROSSING, PASSING = 10_000.0, 10_000.0, 500.0, 60.0, 60.0


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        """
        >>> Box(0, 0, 2, 2).meets(Box(1, 1, 3, 3)), Box(0, 0, 1, 1).meets(Box(2, 2, 3, 3))
        (True, False)
        """
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def holds(self, x: float, y: float) -> bool:
        return self.left < x < self.right and self.bottom < y < self.top


def place_boxes(
    points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], marks: Sequence[Box], area: Box
) -> list[Box]:
    """Give each point a box of its size, from the top point to the lowest. All numbers are pixels.

    ``marks`` are better left uncovered. If there is no free place, the least bad one is taken.
    """
    placed: dict[int, Box] = {}
    lines: list[list[tuple[float, float]]] = []  # from points to their labels
    for i in sorted(range(len(points)), key=lambda i: -points[i][1]):

        def fault(box: Box, i: int = i) -> float:
            line = samples(points[i], box)
            outside = not (area.left <= box.left and box.right <= area.right)
            outside = outside or not (area.bottom <= box.bottom and box.top <= area.top)
            return (
                4 * round(math.dist(*ends(points[i], box)) / 4)  # of places as near, the first one is taken
                + ON_LABEL * sum(box.meets(other) for other in placed.values())
                + OUTSIDE * outside
                + ON_MARK * sum(box.meets(mark) for mark in marks)
                + CROSSING * sum(any(other.holds(*at) for at in line) for other in placed.values())
                + CROSSING * sum(any(box.holds(*at) for at in other) for other in lines)
                + PASSING * sum(any(math.dist(at, p) < REACH for at in line) for p in points if p != points[i])
            )

        placed[i] = min(candidates(points[i], sizes[i]), key=fault)
        lines.append(samples(points[i], placed[i]))
    return [placed[i] for i in range(len(points))]


def candidates(point: tuple[float, float], size: tuple[float, float]) -> list[Box]:
    """Boxes around a point, the nearest first, those to the right before the others."""
    (x, y), (width, height) = point, size
    found = []
    for distance in DISTANCES:
        for k in range(DIRECTIONS):
            angle = math.pi * ((k + 1) // 2) * (-1) ** k * 2 / DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            middle_x = x + distance * across + width / 2 * max(-1.0, min(1.0, 2 * across))
            middle_y = y + distance * up + height / 2 * max(-1.0, min(1.0, 2 * up))
            left, bottom = middle_x - width / 2, middle_y - height / 2
            found.append(Box(left, bottom, left + width, bottom + height))
    return found


def ends(point: tuple[float, float], box: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """The point, and the nearest place on the box."""
    x, y = point
    return point, (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))


def samples(point: tuple[float, float], box: Box) -> list[tuple[float, float]]:
    """Places along the line from a point to its box, some pixels apart."""
    (x, y), (to_x, to_y) = ends(point, box)
    n = 1 + int(math.dist((x, y), (to_x, to_y)) / REACH)
    return [(x + (to_x - x) * k / n, y + (to_y - y) * k / n) for k in range(1, n)]
