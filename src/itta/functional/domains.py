"""Numbers for each domain, from one pass over all domains together."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.functional.transfers import send


def domain_means(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean of each domain's entries, [S]. ``values`` holds the domains one after another.

    >>> domain_means(torch.tensor([1.0, 3.0, 5.0]), [2, 1])
    tensor([2., 5.])
    """
    return torch.stack([part.mean() for part in values.split(list(sizes))])


def domain_risks(logits: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the cross-entropy of each domain, [S]."""
    return domain_means(F.cross_entropy(logits, y, reduction="none"), sizes)


def domain_labels(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return the index of the domain of each image, [N].

    >>> domain_labels([2, 1], torch.device("cpu"))
    tensor([0, 0, 1])
    """
    return send(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), device)
