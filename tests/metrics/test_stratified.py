"""Accuracy from the labels of some images: weights, coverage, and the sharing out of labels."""

import numpy as np
import pytest

from itta.metrics.stratified import allocate, count_classes, estimate_share


def test_strata_count_by_their_size() -> None:
    right = {"changed": np.array([False, False]), "sure": np.array([True, True, True])}
    share = estimate_share(right, {"changed": 10, "sure": 90})
    assert share.value == pytest.approx(0.9)
    assert share.low < 0.9 < share.high


def test_intervals_cover_nine_of_ten() -> None:
    rng, sizes, covered = np.random.default_rng(0), {"a": 200, "b": 400}, 0
    for _ in range(150):
        answers = {name: rng.random(size) < p for (name, size), p in zip(sizes.items(), (0.3, 0.8))}
        truth = sum(a.sum() for a in answers.values()) / 600
        share = estimate_share({name: a[:25] for name, a in answers.items()}, sizes)
        covered += share.low <= truth <= share.high
    assert 0.83 <= covered / 150 <= 0.97


def test_a_stratum_without_labels_widens_the_interval() -> None:
    known = {"a": np.ones(20, dtype=bool)}
    narrow, wide = estimate_share(known, {"a": 100}), estimate_share(known, {"a": 100, "b": 100})
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_a_larger_budget_contains_a_smaller_one() -> None:
    sizes, deviations = {"a": 30, "b": 50, "c": 5}, {"a": 0.5, "b": 0.2, "c": 0.0}
    shares = [allocate(n, sizes, deviations) for n in range(100)]
    assert [sum(s.values()) for s in shares] == [min(n, 85) for n in range(100)]
    assert all(more[k] >= less[k] for less, more in zip(shares, shares[1:]) for k in sizes)


def test_counted_classes_are_those_of_all_images() -> None:
    """Whatever the strata: here nearly all images of the rare class have a changed answer."""
    rng, sizes = np.random.default_rng(0), {"changed": 100, "sure": 900}
    truth = {"changed": np.repeat([0, 1], [20, 80]), "sure": np.repeat([0, 1], [880, 20])}  # class 1: 10 %
    found = []
    for _ in range(300):
        drawn = {name: rng.permutation(labels)[:30] for name, labels in truth.items()}
        found.append(count_classes(drawn, sizes, 3))
    shares = np.array([counted / counted.sum() for counted in found])
    assert shares.mean(0) == pytest.approx([0.9, 0.1, 0.0], abs=0.01)
    assert 30 <= found[0].sum() <= 60  # fewer than 60, because changed images are drawn too often


def test_classes_are_not_counted_while_a_stratum_has_no_label() -> None:
    assert count_classes({"changed": np.array([1, 1])}, {"changed": 5, "sure": 5}, 2).tolist() == [0, 0]
    assert count_classes({"sure": np.array([1, 1])}, {"changed": 0, "sure": 5}, 2).tolist() == [0, 2]
