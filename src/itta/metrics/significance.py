"""Is a difference between methods more than chance? Tests on pairs of measurements with the same target and seed.

Statistical Comparisons of Classifiers over Multiple Data Sets. Demšar, JMLR 2006.

The tests assume independent pairs. Three seeds on four targets are twelve pairs, but models for different targets share
training images. Read a p-value here as a screen against chance, not as a verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from itta.errors import unknown
from itta.metrics.selection import Key

RESAMPLES = 10_000
ALPHA = 0.05
Measurements = Mapping[str, Mapping[tuple[str, Key], float]]  # row -> (target, seed) -> accuracy


@dataclass(frozen=True)
class RowComparison:
    row: str
    pairs: int
    difference: float  # mean of row − baseline
    low: float  # ends of its 95 % interval, by paired bootstrap
    high: float
    p: float  # Wilcoxon's signed-rank test, two-sided
    adjusted: float = 1.0  # p after Holm's correction for all comparisons of the table


@dataclass(frozen=True)
class Ranks:
    """Mean ranks, 1 is best, over the targets and seeds that every row has."""

    mean: Mapping[str, float]
    blocks: int
    friedman: float  # p-value of the hypothesis that all rows are alike
    critical_difference: float  # Nemenyi's: mean ranks closer than this are not significantly different


def compare_rows(values: Measurements, baseline: str) -> list[RowComparison]:
    """Compare every row with the baseline."""
    if baseline not in values:
        raise unknown("row", baseline, list(values))
    found = []
    for row, mine in values.items():
        shared = sorted(mine.keys() & values[baseline].keys()) if row != baseline else []
        if shared:
            d = np.array([mine[k] - values[baseline][k] for k in shared])
            found.append(RowComparison(row, len(d), float(d.mean()), *bootstrap_interval(d), wilcoxon_p(d)))
    return [replace(c, adjusted=p) for c, p in zip(found, holm([c.p for c in found]))]


def bootstrap_interval(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(1), [0.025, 0.975])
    return float(low), float(high)


def wilcoxon_p(differences: np.ndarray) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; 1 if all differences are 0."""
    from scipy import stats

    return float(stats.wilcoxon(differences).pvalue) if np.any(differences) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m − k + 1, never below the one before.

    Ours, because scipy has no Holm correction: its false_discovery_control controls another error rate.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for k, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - k) * p[i]))
        adjusted[i] = largest
    return adjusted


def rank_rows(values: Measurements, alpha: float = ALPHA) -> Ranks | None:
    """Mean ranks with Friedman's test and Nemenyi's critical difference.

    None if fewer than three rows have values, or if they share fewer than two pairs of target and seed.
    """
    from scipy import stats

    rows = [row for row, found in values.items() if found]
    shared = sorted(set.intersection(*(set(values[row]) for row in rows))) if rows else []
    k, n = len(rows), len(shared)
    if k < 3 or n < 2:
        return None
    table = np.array([[values[row][b] for row in rows] for b in shared])  # [blocks, rows]
    mean = stats.rankdata(-table, axis=1).mean(0)
    q = stats.studentized_range.ppf(1 - alpha, k, np.inf) / 2**0.5
    alike = np.ptp(table, axis=1).max() == 0
    friedman = 1.0 if alike else float(stats.friedmanchisquare(*table.T).pvalue)
    return Ranks(dict(zip(rows, map(float, mean))), n, friedman, float(q * (k * (k + 1) / (6 * n)) ** 0.5))
