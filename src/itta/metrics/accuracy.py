"""Means of accuracies: with their standard error, and along a stream."""

from collections.abc import Sequence

import numpy as np


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the standard deviation has the divisor n, as in DomainBed.

    >>> [round(100 * v, 1) for v in mean_and_error([0.1, 0.2, 0.3])]
    [20.0, 4.7]
    """
    n, middle = len(values), mean(values)
    return middle, (sum((v - middle) ** 2 for v in values) / n) ** 0.5 / n**0.5


def running_mean(flags: np.ndarray, window: int) -> np.ndarray:
    """Running mean of a boolean sequence over ``window`` entries; the first entries average over all before them.

    >>> running_mean(np.array([True, False, True, True]), 2).tolist()
    [1.0, 0.5, 0.5, 1.0]
    """
    total = np.concatenate([[0], np.cumsum(flags)])
    end = np.arange(1, len(total))
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def percent(share: float) -> str:
    """Write a share as a percentage, without the sign.

    >>> percent(0.1234)
    '12.3'
    """
    return f"{100 * share:.1f}"
