import numpy as np
import pytest

from itta.metrics.accuracy import mean_and_error, running_mean


def test_running_mean_against_slices() -> None:
    flags = np.random.default_rng(0).uniform(size=300) < 0.4
    for window in (1, 7, 300, 1000):
        naive = [flags[max(0, i + 1 - window) : i + 1].mean() for i in range(len(flags))]
        np.testing.assert_allclose(running_mean(flags, window), naive)
    assert len(running_mean(np.zeros(0, dtype=bool), 5)) == 0


def test_the_error_has_domainbeds_divisor() -> None:
    values = np.random.default_rng(1).uniform(size=9)
    assert mean_and_error(values.tolist()) == pytest.approx((values.mean(), values.std(ddof=0) / 3))
    assert mean_and_error([0.25]) == (0.25, 0.0)
