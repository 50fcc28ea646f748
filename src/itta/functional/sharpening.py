"""Scale scores by one factor so that their predictions have a wanted mean entropy."""

import math

from torch import Tensor

from itta.functional.entropy import entropy

WIDEST = math.log(1e5)  # bound of the factor's logarithm, in both directions


def sharpen(scores: Tensor, wanted: float, start: float = 1.0, iterations: int = 30) -> float:
    """Find k with a mean entropy of softmax(k·scores) of ``wanted`` nats; [B, C].

    Use Newton's method on log k, with dH/d log k = −k²·Var(scores) under the softmax, and steps of at most 1.

    >>> import torch
    >>> scores = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    >>> k = sharpen(scores, wanted=0.3)
    >>> round(float(entropy(k * scores).mean()), 4)
    0.3
    """
    log_k = math.log(start)
    for _ in range(iterations):
        k = math.exp(log_k)
        p = (k * scores).softmax(1)
        mean = (p * scores).sum(1, keepdim=True)
        slope = k**2 * float((p * (scores - mean) ** 2).sum(1).mean())
        excess = float(entropy(k * scores).mean()) - wanted
        step = excess / max(slope, 1e-6)
        log_k = min(max(log_k + min(max(step, -1.0), 1.0), -WIDEST), WIDEST)
        if abs(step) < 1e-4:
            break
    return math.exp(log_k)
