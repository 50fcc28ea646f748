"""What a page tells about a stream, as pure functions of classes and answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from itta.metrics.accuracy import running_mean
from itta.records.story import Stream

POINTS = 600  # of a curve; a screen shows no more
WINDOW = 200  # images over which accuracy along a stream is taken


@dataclass(frozen=True)
class Summary:
    """A stream in a few numbers; shares of the labelled images, None where there are none."""

    images: int
    labelled: int
    before: float | None
    after: float | None
    changed: int  # answers
    helped: int  # wrong before, right after
    hurt: int  # right before, wrong after


@dataclass(frozen=True)
class OfClass:
    name: str
    images: int
    before: float
    after: float


@dataclass(frozen=True)
class Confused:
    """Images of one class taken for another."""

    label: str
    said: str
    before: int
    after: int


@dataclass(frozen=True)
class Curve:
    """Shares over the last ``window`` images, at some images of the stream."""

    window: int
    images: list[int]  # seen
    shares: dict[str, list[float]]


def known(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, answers before and after of the labelled images."""
    labels, before, after = (np.asarray(v, dtype=np.int64) for v in (stream.labels or (), stream.before, stream.after))
    if len(labels) == 0:
        return labels, labels, labels
    has_label = labels >= 0
    return labels[has_label], before[has_label], after[has_label]


def summarise(stream: Stream) -> Summary:
    y, before, after = known(stream)
    was, now = before == y, after == y
    return Summary(
        len(stream.before),
        len(y),
        float(was.mean()) if len(y) else None,
        float(now.mean()) if len(y) else None,
        sum(a != b for a, b in zip(stream.before, stream.after)),
        int((~was & now).sum()),
        int((was & ~now).sum()),
    )


def by_class(stream: Stream) -> list[OfClass]:
    """Accuracy of each class that has labelled images."""
    y, before, after = known(stream)
    found = []
    for i, name in enumerate(stream.classes):
        own = y == i
        if own.any():
            found.append(
                OfClass(name, int(own.sum()), float((before == i)[own].mean()), float((after == i)[own].mean()))
            )
    return found


def confusion(labels: np.ndarray, answers: np.ndarray, n_classes: int) -> np.ndarray:
    """Counts, [class, answer].

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(counts, (labels, answers), 1)
    return counts


def most_confused(classes: Sequence[str], before: np.ndarray, after: np.ndarray, most: int) -> list[Confused]:
    """The pairs of class and wrong answer with the most images before or after, of two matrices of counts."""
    worst = np.maximum(before, after)
    np.fill_diagonal(worst, 0)
    order = np.argsort(-worst, axis=None, kind="stable")[:most]
    pairs = [(int(k) // len(classes), int(k) % len(classes)) for k in order if worst.flat[k] > 0]
    return [Confused(classes[i], classes[j], int(before[i, j]), int(after[i, j])) for i, j in pairs]


def thinned(n: int, most: int = POINTS) -> np.ndarray:
    """Which of n points to draw: evenly spread, with the first and the last.

    >>> thinned(7, 4).tolist(), thinned(3, 4).tolist()
    ([0, 2, 4, 6], [0, 1, 2])
    """
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.zeros(0, dtype=np.int64)


def along(stream: Stream) -> Curve:
    """Accuracy along the stream before and after; the share of changed answers where labels are missing."""
    y, before, after = known(stream)
    shares = {"before": before == y, "after": after == y}
    if len(y) < len(stream.before):
        shares = {"changed": np.asarray(stream.before) != np.asarray(stream.after)}
    n = len(stream.before)
    window = max(1, min(WINDOW, n // 8))
    at = thinned(max(0, n - window + 1))
    return Curve(
        window,
        (at + window).tolist(),
        {name: running_mean(right, window)[window - 1 :][at].round(6).tolist() for name, right in shares.items()},
    )


def block_means(steps: Sequence[int], values: Sequence[float], most: int = POINTS) -> tuple[list[float], list[float]]:
    """A long series as the means of its equal stretches, each at the mean of its steps.

    >>> block_means([1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0], 2)
    ([1.5, 3.5], [2.0, 6.0])
    """
    if len(steps) <= most:
        return [float(s) for s in steps], [float(v) for v in values]
    x, y = (np.array_split(np.asarray(v, dtype=float), most) for v in (steps, values))
    return [float(part.mean()) for part in x], [float(part.mean()) for part in y]
