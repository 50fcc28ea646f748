import numpy as np
import pytest

from itta.metrics.calibration import expected_calibration_error


def naive(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return total


def test_against_the_definition() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.1, 1.0, 500)
    correct = rng.uniform(size=500) < confidence**2
    for bins in (1, 10, 15):
        assert expected_calibration_error(confidence, correct, bins) == pytest.approx(naive(confidence, correct, bins))


def test_ends_of_the_scale() -> None:
    right = np.ones(3, bool)
    assert expected_calibration_error(np.ones(3), right) == 0.0
    assert expected_calibration_error(np.ones(3), ~right) == 1.0
    assert expected_calibration_error(np.zeros(3), ~right) == 0.0
