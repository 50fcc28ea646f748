"""Scale scores by one factor so that their predictions have a wanted mean entropy."""

import math

import numpy as np
from torch import Tensor

WIDEST = math.log(1e5)  # bound of the factor's logarithm, in both directions


def sharpen(scores: Tensor, wanted: float, start: float = 1.0, iterations: int = 30) -> float:
    """Find k with a mean entropy of softmax(k·scores) of ``wanted`` nats; [B, C].

    Use Newton's method on log k, with dH/d log k = −k²·Var(scores) under the softmax, and steps of at most 1.

    >>> import torch
    >>> from itta.functional.entropy import entropy
    >>> scores = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    >>> k = sharpen(scores, wanted=0.3)
    >>> round(float(entropy(k * scores).mean()), 4)
    0.3
    """
    own = scores.double().numpy()
    own = own - own.max(1, keepdims=True)
    log_k = math.log(start)
    for _ in range(iterations):  # in NumPy: torch would wake its threads for each of these small sums
        k = math.exp(log_k)
        p = np.exp(k * own)
        total = p.sum(1, keepdims=True)
        p /= total
        mean = (p * own).sum(1, keepdims=True)
        slope = k**2 * float((p * (own - mean) ** 2).sum()) / len(own)
        excess = float((np.log(total) - k * mean).sum()) / len(own) - wanted
        step = excess / max(slope, 1e-6)
        log_k = min(max(log_k + min(max(step, -1.0), 1.0), -WIDEST), WIDEST)
        if abs(step) < 1e-4:
            break
    return math.exp(log_k)
