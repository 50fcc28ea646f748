import itertools

import numpy as np
import pytest

from itta.errors import InputError
from itta.metrics.significance import (
    FEWEST_TARGETS,
    MOST_EXACT,
    Measurements,
    Run,
    compare_rows,
    holm,
    rank_rows,
    rank_statistics,
    sign_flip_p,
    t_interval,
)

SHAPES = [(4, 3), (4, 60), (8, 3), (12, 3)]  # targets, runs of each


def run(seed: int) -> Run:
    return ("a", "b"), (seed,)


def simulate(targets: int, runs: int, experiments: int, rows: int = 1) -> np.ndarray:
    """Mean differences of targets, [experiments, rows, targets], of rows that are alike.

    The effect of a target is as large as the noise of a run.
    """
    rng = np.random.default_rng(targets * 1000 + runs)
    noise = rng.standard_normal((experiments, rows, targets, runs))
    return rng.standard_normal((experiments, rows, targets)) + noise.mean(-1)


@pytest.mark.parametrize(("targets", "runs"), SHAPES)
def test_intervals_cover_and_false_alarms_are_rare(targets: int, runs: int) -> None:
    means = simulate(targets, runs, 4000)[:, 0]
    low, high = t_interval(means)
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93
    if targets >= FEWEST_TARGETS:
        assert 0.02 < np.mean(sign_flip_p(means) < 0.05) <= 0.06
    else:
        assert sign_flip_p(means).min() > 0.05  # no p-value is given: the test has no power


def test_pairs_that_are_taken_as_independent_give_false_alarms() -> None:
    """The reason to count targets: the same simulation, with a test on 4 × 60 pairs."""
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((1000, 4, 1)) + rng.standard_normal((1000, 4, 60))
    low, high = t_interval(pairs.reshape(1000, -1))
    assert np.mean((low > 0) | (high < 0)) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("targets", "runs"), SHAPES)
def test_ranks_give_few_false_alarms(targets: int, runs: int) -> None:
    tables = simulate(targets, runs, 400, rows=5).transpose(0, 2, 1)  # [experiments, targets, rows]
    statistics = [rank_statistics(t) for t in tables]
    assert np.mean([p < 0.05 for _, p, _ in statistics]) <= 0.06
    assert np.mean([np.ptp(mean) >= difference for mean, _, difference in statistics]) <= 0.06


def naive_sign_flip(d: np.ndarray) -> float:
    """Two-sided p by trying every choice of signs."""
    means = [abs(np.mean(d * np.array(signs))) for signs in itertools.product((1, -1), repeat=len(d))]
    return float(np.mean([m >= abs(d.mean()) - 1e-12 for m in means]))


def test_the_sign_flip_test_is_exact() -> None:
    d = np.array([0.3, -0.1, 0.25, 0.05, 0.4, 0.22, -0.02, 0.31])
    assert float(sign_flip_p(d)) == pytest.approx(naive_sign_flip(d))
    assert float(sign_flip_p(-d)) == float(sign_flip_p(d))
    assert float(sign_flip_p(np.full(FEWEST_TARGETS, 0.1))) == pytest.approx(2 / 2**FEWEST_TARGETS)
    assert float(sign_flip_p(np.full(FEWEST_TARGETS - 1, 0.1))) > 0.05
    assert float(sign_flip_p(np.zeros(7))) == 1.0
    tied = np.array([0.1, 0.2, -0.3, 0.1, 0.2, -0.1])
    assert float(sign_flip_p(tied)) == pytest.approx(naive_sign_flip(tied))


def test_signs_are_drawn_for_many_targets() -> None:
    n = MOST_EXACT + 1
    d = np.random.default_rng(0).normal(0.4, 1.0, n)
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
    sums = np.abs((1 - 2 * bits) @ d)
    assert float(sign_flip_p(d)) == pytest.approx(np.mean(sums >= abs(d.sum()) - 1e-12), abs=0.005)
    assert float(sign_flip_p(d)) == float(sign_flip_p(d))  # the same table every time
    assert float(sign_flip_p(np.ones(40))) == pytest.approx(1e-5)  # never 0


def test_the_interval_is_students() -> None:
    d = np.array([0.1, 0.2, 0.3, 0.4])
    half = 3.182446 * d.std(ddof=1) / 2  # t of 3 degrees of freedom
    assert t_interval(d) == (pytest.approx(0.25 - half), pytest.approx(0.25 + half))


def test_holm() -> None:
    p = [0.04, 0.001, 0.03, 0.6, 0.02]
    ordered = sorted(p)
    naive = {v: max(min(1.0, (5 - j) * ordered[j]) for j in range(i + 1)) for i, v in enumerate(ordered)}
    assert holm(p) == pytest.approx([naive[v] for v in p])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_rows_are_compared_on_the_runs_of_both_and_a_target_counts_once() -> None:
    base = {t: {run(s): 0.5 for s in range(3)} for t in "uvwxyz"}
    better = {t: {run(s): 0.6 + (i + s) / 100 for s in range(3)} for i, t in enumerate("uvwxyz")}
    uneven = {"u": {run(s): 0.6 for s in range(3)}, "v": {run(0): 0.9}, "q": {run(0): 0.1}}
    partly = {"x": {run(0): 0.4, run(7): 0.9}, "q": {run(0): 0.9}}
    values: Measurements = {"base": base, "better": better, "uneven": uneven, "partly": partly, "none": {}}
    found = {c.row: c for c in compare_rows(values, "base")}
    assert found.keys() == {"better", "uneven", "partly"}
    one = found["better"]
    assert (one.targets, one.pairs, one.difference) == (6, 18, pytest.approx(0.135))
    means = np.array([0.11 + i / 100 for i in range(6)])
    assert (one.low, one.high) == pytest.approx([float(x) for x in t_interval(means)])
    assert one.p == one.adjusted == pytest.approx(2 / 64)  # the only p-value of the table
    assert (found["uneven"].targets, found["uneven"].pairs) == (2, 4)
    assert found["uneven"].difference == pytest.approx((0.1 + 0.4) / 2)  # not weighted by seeds
    assert (found["uneven"].p, found["uneven"].adjusted) == (None, None)
    assert (found["partly"].targets, found["partly"].pairs) == (1, 1)
    assert (found["partly"].low, found["partly"].high, found["partly"].p) == (None, None, None)
    with pytest.raises(InputError, match="unknown row 'bose'. Did you mean 'base'"):
        compare_rows(values, "bose")


def test_more_seeds_do_not_make_a_p_value() -> None:
    values = {
        row: {t: {run(s): a + s / 1000 for s in range(60)} for t in "wxyz"} for row, a in (("a", 0.5), ("b", 0.9))
    }
    (one,) = compare_rows(values, "a")
    assert (one.targets, one.pairs, one.p) == (4, 240, None)


def test_ranks_and_the_critical_difference() -> None:
    """Demšar's Table 5: q = 2.343 for three methods, 2.569 for four, at 0.05."""
    values = {
        name: {str(t): {run(s): base + t / 1000 + s / 10 for s in (0, 1)} for t in range(10)}
        for name, base in (("a", 0.9), ("b", 0.5), ("c", 0.7))
    }
    ranks = rank_rows(values)
    assert ranks is not None
    assert ranks.mean == {"a": 1.0, "b": 3.0, "c": 2.0}
    assert ranks.targets == 10  # not 20 pairs
    assert ranks.critical_difference == pytest.approx(2.343 * (3 * 4 / 60) ** 0.5, rel=1e-3)
    assert ranks.friedman == pytest.approx(np.exp(-10))  # χ² of 20 with 2 degrees of freedom
    four = rank_rows({**values, "d": {str(t): {run(0): 0.1} for t in range(10)}})
    assert four is not None
    assert four.critical_difference == pytest.approx(2.569 * (4 * 5 / 60) ** 0.5, rel=1e-3)


def test_ranks_share_ties_and_need_two_whole_targets() -> None:
    values = {n: {"x": {run(0): 0.5}, "y": {run(0): 0.5}} for n in "abc"}
    ranks = rank_rows(values)
    assert ranks is not None
    assert ranks.mean == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert ranks.friedman == 1.0
    assert rank_rows({k: values[k] for k in "ab"}) is None
    assert rank_rows({**values, "d": {"x": {run(0): 0.5}}}) is None  # one target only
    assert rank_rows({**values, "d": {"x": {run(0): 0.5}, "y": {run(1): 0.5}}}) is None  # no seed in common on y
    assert rank_rows({}) is None
    assert rank_rows({**values, "e": {}}) is not None  # a row without results takes no part
