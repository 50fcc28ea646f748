"""Accuracy and classes of all images from the labels of some, weighted by the way in which they were sampled.

The images are cut into strata, and some of each stratum, drawn at random, have labels. The images without a label are
simulated: with k of n right in a stratum, the share of right ones is drawn from Beta(k + ½, n − k + ½), the posterior
of Jeffreys' prior, and the rest of the stratum from a binomial law. The quantiles of the sum are the interval. It is
for one look at a planned number of labels; `sequential` is for looking at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

DRAWS = 5_000


@dataclass(frozen=True)
class Share:
    """A share of all images with its interval."""

    value: float
    low: float
    high: float


def estimate_share(
    right: Mapping[str, np.ndarray], sizes: Mapping[str, int], level: float = 0.9, seed: int = 0
) -> Share:
    """Estimate the share of right answers: ``right`` has a boolean for each labelled image of a stratum.

    >>> share = estimate_share({"changed": np.array([True, True, False, False])}, {"changed": 4})
    >>> share.value, share.low, share.high  # every image has a label
    (0.5, 0.5, 0.5)
    """
    rng = np.random.default_rng(seed)
    total, everything = np.zeros(DRAWS), sum(sizes.values())
    middle = 0.0
    for name, size in sizes.items():
        labelled = np.asarray(right.get(name, ()), dtype=bool)
        k, n = int(labelled.sum()), len(labelled)
        share = rng.beta(k + 0.5, n - k + 0.5, DRAWS)
        total += k + rng.binomial(size - n, share)
        middle += size * (k / n if n else 0.5)
    low, high = np.quantile(total / everything, [(1 - level) / 2, (1 + level) / 2])
    return Share(middle / everything, float(low), float(high))


def count_classes(labels: Mapping[str, np.ndarray], sizes: Mapping[str, int], classes: int) -> np.ndarray:
    """Count the classes, as if some images had been drawn at random; [classes], whole numbers.

    ``labels`` has the labels of each stratum. The share of a class is Σ W_s·k_s/n_s, with W_s the stratum's share of
    all images and k_s of its n_s labels; it is about as sure as that of 1/Σ(W_s²/n_s) images drawn at random. While a
    stratum has no label there is no count: zeros.

    >>> labels = {"changed": np.array([0, 0, 0, 1]), "sure": np.array([0, 1, 1, 1])}
    >>> count_classes(labels, {"changed": 10, "sure": 90}, classes=2)
    array([1, 3])
    """
    weights = {name: size / sum(sizes.values()) for name, size in sizes.items() if size}
    if not all(len(labels.get(name, ())) for name in weights):
        return np.zeros(classes, dtype=int)
    shares = sum(w * np.bincount(labels[name], minlength=classes) / len(labels[name]) for name, w in weights.items())
    images = 1 / sum(w**2 / len(labels[name]) for name, w in weights.items())
    found: np.ndarray = np.rint(images * np.asarray(shares)).astype(int)
    return found


def allocate(budget: int, sizes: Mapping[str, int], deviations: Mapping[str, float]) -> dict[str, int]:
    """Share out labels over strata by size times deviation (Neyman's rule), at most as many as there are images.

    >>> allocate(10, {"sure": 90, "unsure": 10}, {"sure": 0.1, "unsure": 0.5})
    {'sure': 7, 'unsure': 3}
    >>> allocate(30, {"sure": 90, "unsure": 10}, {"sure": 0.1, "unsure": 0.5})
    {'sure': 20, 'unsure': 10}
    """
    given = dict.fromkeys(sizes, 0)
    weights = {name: sizes[name] * max(deviations[name], 0.05) for name in sizes}
    for _ in range(min(budget, sum(sizes.values()))):
        open_ = [name for name in sizes if given[name] < sizes[name]]
        given[max(open_, key=lambda name: weights[name] / (given[name] + 1))] += 1
    return given
