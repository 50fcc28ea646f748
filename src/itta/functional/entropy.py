"""The entropy of predictions: how certain one prediction is, and how evenly a batch spreads over the classes."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction, in nats, [B].

    >>> import torch
    >>> entropy(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([0.6931, 0.1909])
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def entropy_of_mean(logits: Tensor) -> Tensor:
    """Return the entropy of the batch's mean prediction. It is high if all classes are predicted equally often.

    >>> import torch
    >>> entropy_of_mean(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.6931)
    """
    log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(log_mean.exp() * log_mean).sum()


def effective_classes(mean: np.ndarray) -> float:
    """Return the effective number of classes of a mean prediction, exp of its entropy.

    >>> round(effective_classes(np.array([0.5, 0.5, 0.0])), 6)
    2.0
    """
    return math.exp(-float((mean * np.log(np.maximum(mean, 1e-12))).sum()))


def log_mean_probability(answers: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """Return the weighted mean of several predictions for the same images, [B, C] each, as log-probabilities.

    >>> log_mean_probability([torch.tensor([[0.0, 0.0]]), torch.tensor([[200.0, 0.0]])]).exp()
    tensor([[0.7500, 0.2500]])
    """
    given = weights or [1.0] * len(answers)
    shares = answers[0].new_tensor([w / sum(given) for w in given]).log().view(-1, 1, 1)
    return (torch.stack([logits.log_softmax(1) for logits in answers]) + shares).logsumexp(0)


def running_means(answers: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor]:
    """Return `log_mean_probability` of the first answer, of the first two, and so on.

    >>> means = running_means([torch.tensor([[0.0, 0.0]]), torch.tensor([[200.0, 0.0]])], [1.0, 1.0])
    >>> [mean.exp().tolist() for mean in means]
    [[[0.5, 0.5]], [[0.75, 0.25]]]
    """
    shares = answers[0].new_tensor(weights).view(-1, 1, 1)
    log_p = torch.stack(list(answers)).log_softmax(2)
    return list((log_p + shares.log()).logcumsumexp(0) - shares.cumsum(0).log())


def total_variation(logits: Tensor, others: Tensor) -> Tensor:
    """Return the distance between two predictions for each image, from 0 (equal) to 1, [B].

    >>> total_variation(torch.tensor([[0.0, 0.0], [200.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 200.0]]))
    tensor([0., 1.])
    """
    return (logits.softmax(1) - others.softmax(1)).abs().sum(1) / 2
