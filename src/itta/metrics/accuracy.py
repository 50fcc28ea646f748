"""A share along a stream."""

import numpy as np


def running_share(right: np.ndarray, window: int) -> np.ndarray:
    """Share of yes over the last ``window``, at each; over all so far where there are fewer.

    >>> running_share(np.array([True, False, True, True]), 2).tolist()
    [1.0, 0.5, 0.5, 1.0]
    """
    total = np.concatenate([[0], np.cumsum(right)])
    end = np.arange(1, len(total))
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)
