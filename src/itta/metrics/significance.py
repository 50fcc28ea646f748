"""Is a difference more than chance? Pairs of measurements that share their target and their seed.

Statistical Comparisons of Classifiers over Multiple Data Sets. Demšar, JMLR 2006.

A pair is as good as its seeds are independent: three seeds on four targets are twelve pairs, but the targets share
their models' training images. Read a p-value here as a screen against chance, not as a verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from itta.errors import unknown
from itta.metrics.selection import Key
from itta.report.cells import Filled
from itta.report.tables import Table, points

RESAMPLES = 10_000
ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    row: str
    pairs: int
    difference: float  # mean of row − baseline
    low: float  # 95 % interval of it, by paired bootstrap
    high: float
    p: float  # Wilcoxon's signed-rank test, two-sided
    adjusted: float = 1.0  # by Holm, for all the comparisons made


@dataclass(frozen=True)
class Ranks:
    """Mean ranks, 1 the best, over the targets and seeds that every row has."""

    mean: Mapping[str, float]
    blocks: int
    friedman: float  # p-value that all rows are alike
    critical_difference: float  # Nemenyi's: mean ranks closer than this are not told apart


def measurements(filled: Filled) -> dict[str, dict[tuple[str, Key], float]]:
    """Row -> (target, seed) -> accuracy."""
    return {
        row: {(str(column), key): value for column, cell in cells.items() for key, value in cell.values.items()}
        for row, cells in filled.targets.items()
    }


def compare(values: Mapping[str, Mapping[tuple[str, Key], float]], baseline: str) -> list[Comparison]:
    """Every row with a baseline."""
    if baseline not in values:
        raise unknown("row", baseline, list(values))
    found = []
    for row, mine in values.items():
        shared = sorted(mine.keys() & values[baseline].keys()) if row != baseline else []
        if shared:
            d = np.array([mine[k] - values[baseline][k] for k in shared])
            found.append(Comparison(row, len(d), float(d.mean()), *bootstrap(d), wilcoxon(d)))
    adjusted = holm([c.p for c in found])
    return [Comparison(c.row, c.pairs, c.difference, c.low, c.high, c.p, a) for c, a in zip(found, adjusted)]


def bootstrap(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(1), [0.025, 0.975])
    return float(low), float(high)


def wilcoxon(differences: np.ndarray) -> float:
    from scipy import stats

    return float(stats.wilcoxon(differences).pvalue) if np.any(differences) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m − k + 1, never below the one before.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for k, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - k) * p[i]))
        adjusted[i] = largest
    return adjusted


def rank(values: Mapping[str, Mapping[tuple[str, Key], float]], alpha: float = ALPHA) -> Ranks | None:
    """Friedman's test and Nemenyi's critical difference; needs three rows and two blocks that all of them have."""
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


def comparison_table(comparisons: Sequence[Comparison], baseline: str) -> Table:
    rows = [
        [
            c.row,
            points(c.difference),
            f"{points(c.low)} … {points(c.high)}",
            f"{c.p:.3g}",
            f"{c.adjusted:.3g}",
            str(c.pairs),
        ]
        for c in comparisons
    ]
    return Table(
        f"Difference from {baseline} in points, with its 95 % interval (paired bootstrap), Wilcoxon's p, and p after "
        f"Holm's correction for {len(comparisons)} comparisons.",
        ["", "difference", "95 %", "p", "p, Holm", "pairs"],
        rows,
    )
