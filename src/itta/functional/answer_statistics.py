"""Statistics of a model's answers to many images, without labels: how sure, how spread out, how much alike.

Each takes probabilities p [N, C], or classes [N], and returns one number.
"""

import math

import torch
from torch import Tensor


def mean_confidence(p: Tensor) -> float:
    """Return the mean probability of the chosen classes.

    >>> round(mean_confidence(torch.tensor([[0.9, 0.1], [0.4, 0.6]])), 6)
    0.75
    """
    return float(p.amax(1).mean())


def negative_entropy(p: Tensor) -> Tensor:
    """Return Σ p·log p of each image, [N]; 0 is certain."""
    return torch.special.entr(p).sum(1).neg()


def share_above(scores: Tensor, threshold: float) -> float:
    """Return the share of scores above a threshold."""
    return float((scores > threshold).float().mean())


def threshold_for(scores: Tensor, share: float) -> float:
    """Return the threshold that a given share of the scores lies above.

    >>> threshold_for(torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.75)
    0.10000000149011612
    """
    below = round((1 - share) * len(scores))
    return float(scores.sort().values[below - 1]) if below > 0 else float(scores.min()) - 1.0


def nuclear_norm(p: Tensor) -> float:
    """Return the sum of the singular values of p, as a share of the largest that N answers can have.

    It is 1 if all answers are certain and all classes are answered equally often. It falls with either.

    >>> round(nuclear_norm(torch.eye(3).repeat(4, 1)), 6), round(nuclear_norm(torch.full((6, 3), 1 / 3)), 3)
    (1.0, 0.333)
    """
    n, classes = p.shape
    return float(torch.linalg.svdvals(p.double()).sum() / (n * min(n, classes)) ** 0.5)


def answer_skew(p: Tensor, prior: Tensor) -> float:
    """Return the distance between the share of each answered class and a prior, from 0 to 1 (total variation).

    >>> answer_skew(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0.5, 0.5]))
    0.5
    """
    shares = torch.bincount(p.argmax(1), minlength=p.shape[1]).to(p) / len(p)
    return float((shares - prior.to(p)).abs().sum() / 2)


def answer_diversity(p: Tensor) -> float:
    """Return the entropy of the mean answer, as a share of that of equal classes.

    >>> round(answer_diversity(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), 6), answer_diversity(torch.tensor([[1.0, 0.0]]))
    (1.0, 0.0)
    """
    return float(torch.special.entr(p.mean(0)).sum() / math.log(p.shape[1])) if p.shape[1] > 1 else 1.0


def mean_support(opinion: Tensor, answers: Tensor) -> float:
    """Return the mean probability that another opinion [N, C] gives to the answered classes [N].

    >>> mean_support(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
    0.625
    """
    return float(opinion.gather(1, answers.unsqueeze(1)).mean())


def mean_distance(p: Tensor, opinion: Tensor) -> float:
    """Return the mean distance between two answers [N, C] to each image, from 0 (equal) to 1 (total variation).

    >>> mean_distance(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    0.5
    """
    return float((p - opinion).abs().sum(1).mean() / 2)


def believed_gain(belief: Tensor, before: Tensor, after: Tensor) -> float:
    """Return the share of right answers that a belief [N, C] expects to win by the classes ``after`` over ``before``.

    >>> believed_gain(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([1, 0]), torch.tensor([0, 0]))
    0.25
    """
    won, lost = (belief.gather(1, classes.unsqueeze(1)) for classes in (after, before))
    return float((won - lost).mean())


def neighbour_support(z: Tensor, p: Tensor, answers: Tensor, k: int) -> Tensor:
    """Return the mean probability that the ``k`` nearest other images give to each answer, [N].

    Images are near if their features z [N, d] have a high cosine. Fewer than ``k`` others are all neighbours.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> p = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])
    >>> neighbour_support(z, p, p.argmax(1), k=1)
    tensor([0.5000, 0.7500, 0.5000])
    """
    z = torch.nn.functional.normalize(z, dim=1)
    near = (z @ z.T).fill_diagonal_(-torch.inf).topk(min(k, len(z) - 1)).indices  # [N, k]
    return p[near].mean(1).gather(1, answers.unsqueeze(1))[:, 0]
