"""Charts as geometry: paths and ticks in a box. The template stretches the box and puts the text beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 1000.0, 300.0  # of the box
MOST_DOTS = 40  # lines with fewer points also show a dot for each
PLACES = 120  # along the width; marks in the same place are drawn as one


@dataclass(frozen=True)
class Line:
    name: str
    path: str
    dots: str  # a path of dots; empty if there are many points


@dataclass(frozen=True)
class Tick:
    at: float  # % of the box, from the left or from the bottom
    text: str


@dataclass(frozen=True)
class Mark:
    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    about: str  # describes the chart in words
    x_name: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...] = ()


def nice_ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers that span the values, at most ``most`` + 1 of them; ``whole`` allows whole numbers only.

    >>> nice_ticks(41.3, 48.9), nice_ticks(0, 0.07), nice_ticks(1, 3, 7, whole=True)
    ([40.0, 42.0, 44.0, 46.0, 48.0, 50.0], [0.0, 0.02, 0.04, 0.06, 0.08], [1.0, 2.0, 3.0])
    """
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    size = 10 ** math.floor(math.log10((high - low) / (most - 1)))
    size = max(1, size) if whole else size
    steps = [s * size for s in ((1, 2, 5, 10, 20) if whole else (1, 2, 2.5, 5, 10, 20))]
    step = next(s for s in steps if math.ceil(high / s) - math.floor(low / s) < most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def line_chart(
    title: str,
    x_name: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    marks: Sequence[Mark] = (),
    start: float | None = None,
) -> Chart:
    """Draw lines into one box: ``series`` is name -> (x, y). The box begins at ``start``, by default the first x."""
    xs = [v for x, _ in series.values() for v in x]
    ys = [v for _, y in series.values() for v in y]
    left, right = min(xs) if start is None else start, max(xs)
    if left == right:
        left, right = left - 1, right + 1
    x_ticks, y_ticks = nice_ticks(left, right, 7, whole=True), nice_ticks(min(ys), max(ys))
    bottom, top = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> str:
        return f"{(x - left) / (right - left) * WIDTH:.1f} {(top - y) / (top - bottom) * HEIGHT:.1f}"

    lines = []
    for name, (x, y) in series.items():
        points = [place(*p) for p in zip(x, y)]
        lines.append(
            Line(name, "M" + "L".join(points), "".join(f"M{p}h0" for p in points) if len(points) < MOST_DOTS else "")
        )
    return Chart(
        title,
        "; ".join(f"{name}: from {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in series.items()) + ".",
        x_name,
        tuple(lines),
        tuple(Tick(100 * (v - left) / (right - left), f"{v:,g}") for v in x_ticks if left <= v <= right),
        tuple(Tick(100 * (v - bottom) / (top - bottom), f"{v:g}") for v in y_ticks),
        tuple(place_marks(marks, left, right)),
    )


def place_marks(marks: Sequence[Mark], left: float, right: float) -> list[Mark]:
    """Marks at percentages of the width. Marks in one place become one: it shows the first and counts the others."""
    places: dict[int, list[Mark]] = {}
    for mark in marks:
        share = min(1.0, max(0.0, (mark.at - left) / (right - left)))
        places.setdefault(round(share * PLACES), []).append(Mark(100 * share, mark.kind, mark.text))
    return [
        Mark(found[0].at, found[0].kind, found[0].text + (f"; and {len(found) - 1} more here" if found[1:] else ""))
        for found in places.values()
    ]
