"""Calibration: does the confidence of a model agree with its accuracy?"""

import numpy as np


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy in bins of equal width, weighted by the size of the bins.

    On Calibration of Modern Neural Networks. Guo, Pleiss, Sun, Weinberger, ICML 2017. https://arxiv.org/abs/1706.04599

    >>> error = expected_calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, True, True, False]))
    >>> round(error, 6)  # |0.9 - 1| / 2 + |0.6 - 0.5| / 2
    0.1
    """
    bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(bin_of, confidence - correct, bins)
    return float(np.abs(gap).sum() / len(confidence))
