"""How sure a prediction is, and how evenly predictions are spread."""

import math

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """The entropy of each prediction, in nats, [B].

    >>> import torch
    >>> entropy(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([0.6931, 0.1909])
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def entropy_of_mean(logits: Tensor) -> Tensor:
    """The entropy of the batch's mean prediction: high where all classes are predicted equally often.

    >>> import torch
    >>> entropy_of_mean(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.6931)
    """
    log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(log_mean.exp() * log_mean).sum()
