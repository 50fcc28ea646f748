"""Statistics of a stream: accuracy before and after adaptation, by class, along the stream, and confusion."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from itta.metrics.accuracy import running_mean
from itta.records.story import Stream

MOST_POINTS = 600  # of a curve; a screen shows no more
WINDOW = 200  # images, of the running accuracy


@dataclass(frozen=True)
class StreamSummary:
    """A stream in a few numbers. Accuracies are those of the labelled images, None if there are none."""

    images: int
    labelled: int
    before: float | None
    after: float | None
    changed: int  # answers that adaptation changed
    helped: int  # wrong before, right after
    hurt: int  # right before, wrong after


@dataclass(frozen=True)
class ClassAccuracy:
    name: str
    images: int
    before: float
    after: float


@dataclass(frozen=True)
class ConfusedPair:
    """Images of the class ``label`` that got the answer ``said``: how many, before and after adaptation."""

    label: str
    said: str
    before: int
    after: int


@dataclass(frozen=True)
class RunningShares:
    """Running means over ``window`` images, at some images of the stream."""

    window: int
    images: list[int]  # number of images seen
    shares: dict[str, list[float]]


def labelled_answers(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, answers before and answers after, of the labelled images."""
    labels, before, after = (np.asarray(v, dtype=np.int64) for v in (stream.labels or (), stream.before, stream.after))
    if len(labels) == 0:
        return labels, labels, labels
    has_label = labels >= 0
    return labels[has_label], before[has_label], after[has_label]


def stream_summary(stream: Stream) -> StreamSummary:
    y, before, after = labelled_answers(stream)
    was, now = before == y, after == y
    return StreamSummary(
        len(stream.before),
        len(y),
        float(was.mean()) if len(y) else None,
        float(now.mean()) if len(y) else None,
        sum(a != b for a, b in zip(stream.before, stream.after)),
        int((~was & now).sum()),
        int((was & ~now).sum()),
    )


def class_accuracies(stream: Stream) -> list[ClassAccuracy]:
    """Accuracy of each class that has labelled images."""
    y, before, after = labelled_answers(stream)
    found = []
    for i, name in enumerate(stream.classes):
        own = y == i
        if own.any():
            found.append(
                ClassAccuracy(name, int(own.sum()), float((before == i)[own].mean()), float((after == i)[own].mean()))
            )
    return found


def confusion_counts(labels: np.ndarray, answers: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of images of each class with each answer, [class, answer].

    >>> confusion_counts(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(counts, (labels, answers), 1)
    return counts


def most_confused(classes: Sequence[str], before: np.ndarray, after: np.ndarray, most: int) -> list[ConfusedPair]:
    """The ``most`` pairs of class and wrong answer with the most images, given the counts before and after."""
    worst = np.maximum(before, after)
    np.fill_diagonal(worst, 0)
    order = np.argsort(-worst, axis=None, kind="stable")[:most]
    pairs = [(int(k) // len(classes), int(k) % len(classes)) for k in order if worst.flat[k] > 0]
    return [ConfusedPair(classes[i], classes[j], int(before[i, j]), int(after[i, j])) for i, j in pairs]


def even_subset(n: int, most: int = MOST_POINTS) -> np.ndarray:
    """The numbers of at most ``most`` out of n points, evenly spread, with the first and the last.

    >>> even_subset(7, 4).tolist(), even_subset(3, 4).tolist()
    ([0, 2, 4, 6], [0, 1, 2])
    """
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.zeros(0, dtype=np.int64)


def running_shares(stream: Stream) -> RunningShares:
    """Accuracy along the stream before and after; if labels are missing, the share of changed answers."""
    y, before, after = labelled_answers(stream)
    shares = {"before": before == y, "after": after == y}
    if len(y) < len(stream.before):
        shares = {"changed": np.asarray(stream.before) != np.asarray(stream.after)}
    n = len(stream.before)
    if len(stream.estimated) == n and "accuracy" in stream.estimate:
        shares |= estimated_shares(stream)
    window = max(1, min(WINDOW, n // 8))
    at = even_subset(max(0, n - window + 1))
    return RunningShares(
        window,
        (at + window).tolist(),
        {name: running_mean(right, window)[window - 1 :][at].round(6).tolist() for name, right in shares.items()},
    )


def estimated_shares(stream: Stream) -> dict[str, np.ndarray]:
    """How probably each answer is right by the estimate, and by the two ends of its interval."""
    middle, found = np.asarray(stream.estimated, dtype=float), {}
    for name, end in (("estimate", "accuracy"), ("estimate, low", "low"), ("estimate, high", "high")):
        away = stream.estimate.get(end, stream.estimate["accuracy"]) - stream.estimate["accuracy"]
        found[name] = np.clip(middle + away, 0, 1)
    return found


def block_means(
    steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """Shorten a series to ``most`` points: the means of equal blocks, each at the mean of its steps.

    >>> block_means([1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0], 2)
    ([1.5, 3.5], [2.0, 6.0])
    """
    if len(steps) <= most:
        return [float(s) for s in steps], [float(v) for v in values]
    x, y = (np.array_split(np.asarray(v, dtype=float), most) for v in (steps, values))
    return [float(part.mean()) for part in x], [float(part.mean()) for part in y]
