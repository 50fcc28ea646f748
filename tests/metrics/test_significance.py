import itertools

import numpy as np
import pytest

from itta.errors import InputError
from itta.metrics.significance import bootstrap_interval, compare_rows, holm, rank_rows, wilcoxon_p


def exact_wilcoxon(d: np.ndarray) -> float:
    """Two-sided p by trying every choice of signs; no ties, no zeros."""
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    found = ranks[d > 0].sum()
    sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(d))]
    middle = ranks.sum() / 2
    return float(np.mean([abs(s - middle) >= abs(found - middle) for s in sums]))


def test_wilcoxon_is_exact() -> None:
    d = np.array([0.3, -0.1, 0.25, 0.05, 0.4, 0.22, -0.02, 0.31])
    assert wilcoxon_p(d) == pytest.approx(exact_wilcoxon(d))
    assert wilcoxon_p(np.array([0.1, 0.2, 0.3])) == pytest.approx(0.25)  # three seeds cannot say more
    assert wilcoxon_p(np.zeros(5)) == 1.0


def test_holm() -> None:
    p = [0.04, 0.001, 0.03, 0.6, 0.02]
    ordered = sorted(p)
    naive = {v: max(min(1.0, (5 - j) * ordered[j]) for j in range(i + 1)) for i, v in enumerate(ordered)}
    assert holm(p) == pytest.approx([naive[v] for v in p])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_bootstrap_interval_of_many_pairs_is_the_normal_one() -> None:
    d = np.random.default_rng(1).normal(0.5, 1.0, 2000)
    low, high = bootstrap_interval(d)
    expected = 1.96 * d.std() / len(d) ** 0.5
    assert (low, high) == pytest.approx((d.mean() - expected, d.mean() + expected), abs=0.1 * expected)
    assert bootstrap_interval(d) == (low, high)  # the same table every time
    assert bootstrap_interval(np.full(4, 0.2)) == pytest.approx((0.2, 0.2))


def test_rows_are_compared_on_what_both_have() -> None:
    base = {("x", (s,)): 0.5 for s in range(6)}
    better = {("x", (s,)): 0.6 + s / 100 for s in range(6)}
    values = {"base": base, "better": better, "partly": {("x", (0,)): 0.4, ("y", (0,)): 0.9}, "none": {}}
    found = {c.row: c for c in compare_rows(values, "base")}
    assert found.keys() == {"better", "partly"}
    assert found["better"].difference == pytest.approx(0.125)
    assert found["better"].p == pytest.approx(2 / 64)
    assert found["better"].adjusted == pytest.approx(4 / 64)
    assert (found["partly"].pairs, found["partly"].difference) == (1, pytest.approx(-0.1))
    assert found["partly"].adjusted == 1.0
    with pytest.raises(InputError, match="unknown row 'bose'. Did you mean 'base'"):
        compare_rows(values, "bose")


def test_ranks_and_the_critical_difference() -> None:
    """Demšar's Table 5: q = 2.343 for three methods, 2.569 for four, at 0.05."""
    blocks = [(str(b), (0,)) for b in range(10)]
    values = {
        name: {b: base + i / 1000 for i, b in enumerate(blocks)} for name, base in (("a", 0.9), ("b", 0.5), ("c", 0.7))
    }
    ranks = rank_rows(values)
    assert ranks is not None
    assert ranks.mean == {"a": 1.0, "b": 3.0, "c": 2.0}
    assert ranks.blocks == 10
    assert ranks.critical_difference == pytest.approx(2.343 * (3 * 4 / 60) ** 0.5, rel=1e-3)
    assert ranks.friedman == pytest.approx(np.exp(-10))  # χ² of 20 with 2 degrees of freedom
    four = rank_rows({**values, "d": dict.fromkeys(blocks, 0.1)})
    assert four is not None
    assert four.critical_difference == pytest.approx(2.569 * (4 * 5 / 60) ** 0.5, rel=1e-3)


def test_ranks_share_ties_and_need_whole_blocks() -> None:
    values = {n: {("x", (0,)): 0.5, ("y", (0,)): 0.5} for n in "abc"}
    ranks = rank_rows(values)
    assert ranks is not None
    assert ranks.mean == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert ranks.friedman == 1.0
    assert rank_rows({k: values[k] for k in "ab"}) is None
    assert rank_rows({**values, "d": {("x", (0,)): 0.5}}) is None  # one block only
    assert rank_rows({}) is None
    assert rank_rows({**values, "e": {}}) is not None  # a row without results takes no part
