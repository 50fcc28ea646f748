"""Is a difference between methods more than chance? Tests on the mean differences of the targets.

Statistical Comparisons of Classifiers over Multiple Data Sets. Demšar, JMLR 2006.

Runs with the same target share its images, so their differences are not independent. Each target therefore counts
once, with the mean over its runs: more seeds make this mean more precise, but only more targets make the test stronger.
Models for different targets still share training images. Read a p-value as a screen against chance, not as a verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from itta.errors import unknown
from itta.metrics.selection import Key

ALPHA = 0.05
FEWEST_TARGETS = 6  # 2 / 2⁶ is the first smallest p-value of the sign-flip test below ALPHA
MOST_EXACT = 16  # targets up to which every choice of signs is tried
FLIPS = 100_000  # choices of signs that are drawn beyond

Run = tuple[tuple[str, ...], Key]  # source domains, seed
Measurements = Mapping[str, Mapping[str, Mapping[Run, float]]]  # row -> target -> run -> accuracy


@dataclass(frozen=True)
class RowComparison:
    row: str
    targets: int
    pairs: int  # runs of both rows with the same sources, target and seed
    difference: float  # row − baseline: the mean over targets of the mean over runs
    low: float | None  # ends of its 95 % interval, by Student's t over targets; None with one target
    high: float | None
    p: float | None  # sign-flip test over targets, two-sided; None with fewer than FEWEST_TARGETS targets
    adjusted: float | None = None  # p after Holm's correction for all p-values of the table


@dataclass(frozen=True)
class Ranks:
    """Mean ranks, 1 is best, over the targets that every row has."""

    mean: Mapping[str, float]
    targets: int
    friedman: float  # p-value of the hypothesis that all rows are alike
    critical_difference: float  # Nemenyi's: mean ranks closer than this are not significantly different


def compare_rows(values: Measurements, baseline: str) -> list[RowComparison]:
    """Compare every row with the baseline, on the runs that both have."""
    if baseline not in values:
        raise unknown("row", baseline, list(values))
    found = [compare_row(row, mine, values[baseline]) for row, mine in values.items() if row != baseline]
    comparisons = [c for c in found if c is not None]
    adjusted = iter(holm([c.p for c in comparisons if c.p is not None]))
    return [c if c.p is None else replace(c, adjusted=next(adjusted)) for c in comparisons]


def compare_row(
    row: str, mine: Mapping[str, Mapping[Run, float]], base: Mapping[str, Mapping[Run, float]]
) -> RowComparison | None:
    """Compare a row with the baseline; None if they share no run."""
    shared = {t: sorted(mine[t].keys() & base[t].keys()) for t in sorted(mine.keys() & base.keys())}
    means = np.array([np.mean([mine[t][r] - base[t][r] for r in runs]) for t, runs in shared.items() if runs])
    if not len(means):
        return None
    low, high = map(float, t_interval(means)) if len(means) > 1 else (None, None)
    p = float(sign_flip_p(means)) if len(means) >= FEWEST_TARGETS else None
    return RowComparison(row, len(means), sum(map(len, shared.values())), float(means.mean()), low, high, p)


def t_interval(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's 95 % interval of the mean over the last axis, which has at least two entries."""
    from scipy import stats

    n = means.shape[-1]
    half = stats.t.ppf(1 - ALPHA / 2, n - 1) * means.std(-1, ddof=1) / n**0.5
    return means.mean(-1) - half, means.mean(-1) + half


def sign_flip_p(means: np.ndarray) -> np.ndarray:
    """The two-sided p-value of the sign-flip test over the last axis.

    If two rows are alike, the difference on a target is as likely to be positive as negative, by the same amount. p is
    the share of all choices of signs for which the mean is at least as far from 0 as it is. Up to MOST_EXACT targets
    every choice is tried, and the test keeps its level for any symmetric distribution.

    >>> float(sign_flip_p(np.array([0.1, 0.3, 0.2, 0.1, 0.2, 0.4])))
    0.03125
    """
    sums = np.abs(means @ flips(means.shape[-1]).T)  # [..., choices]; the first choice is the data as they are
    found = sums[..., :1]
    return np.asarray((sums >= found - 1e-9 * np.abs(means).sum(-1, keepdims=True)).mean(-1))


def flips(n: int) -> np.ndarray:
    """Choices of n signs, [choices, n]. A choice and its opposite give the same |mean|, so the first sign stays +."""
    if n <= MOST_EXACT:
        bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n - 1) & 1
    else:
        bits = np.random.default_rng(0).integers(2, size=(FLIPS, n - 1))
        bits[0] = 0
    return np.concatenate([np.ones((len(bits), 1)), 1.0 - 2.0 * bits], axis=1)


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
    """Mean ranks over targets, with Friedman's test and Nemenyi's critical difference.

    A row's value on a target is its mean over the runs that every row has there. None if fewer than three rows have
    values, or if they share fewer than two targets.
    """
    rows = [row for row, targets in values.items() if any(targets.values())]
    if len(rows) < 3:
        return None
    table = []
    for target in sorted(set.intersection(*(set(values[row]) for row in rows))):
        runs = sorted(set.intersection(*(set(values[row][target]) for row in rows)))
        if runs:
            table.append([np.mean([values[row][target][r] for r in runs]) for row in rows])
    if len(table) < 2:
        return None
    mean, friedman, difference = rank_statistics(np.array(table), alpha)
    return Ranks(dict(zip(rows, map(float, mean))), len(table), friedman, difference)


def rank_statistics(table: np.ndarray, alpha: float = ALPHA) -> tuple[np.ndarray, float, float]:
    """Mean ranks of the columns of a table [targets, rows], Friedman's p and Nemenyi's critical difference."""
    from scipy import stats

    n, k = table.shape
    mean = stats.rankdata(-table, axis=1).mean(0)
    alike = np.ptp(table, axis=1).max() == 0
    friedman = 1.0 if alike else float(stats.friedmanchisquare(*table.T).pvalue)
    q = stats.studentized_range.ppf(1 - alpha, k, np.inf) / 2**0.5
    return mean, friedman, float(q * (k * (k + 1) / (6 * n)) ** 0.5)
