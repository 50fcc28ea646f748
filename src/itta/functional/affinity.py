"""Affinities between the samples of a batch, and predictions made to agree between samples that lie close together."""

import torch
from torch import Tensor


def distances(z: Tensor) -> Tensor:
    """Return Euclidean distances [B, B]. They are exactly 0 between equal vectors, unlike those from a product."""
    return torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")


def nearest_others(distance: Tensor, k: int) -> Tensor:
    """Return indices [B, k] of the k nearest other samples, nearest first; fewer in a smaller batch."""
    others = distance.clone().fill_diagonal_(torch.inf)  # among equals, a sample need not come first in its own row
    return others.topk(min(k, len(distance) - 1), largest=False).indices


def knn_affinity(z: Tensor, k: int) -> Tensor:
    """Return W [B, B]: 1 if j is among the k nearest other samples of i, else 0.

    >>> knn_affinity(torch.tensor([[0.0], [1.0], [3.0]]), k=1)
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 1., 0.]])
    """
    distance = distances(z)
    return torch.zeros_like(distance).scatter_(1, nearest_others(distance, k), 1.0)


def rbf_affinity(z: Tensor, k: int) -> Tensor:
    """Return W = exp(−d²/2σ²), with σ the mean distance to the k-th nearest sample; a sample is its own nearest.

    Equal vectors have affinity 1, even at σ = 0, which k = 1 gives.

    >>> rbf_affinity(torch.tensor([[0.0], [2.0]]), k=2)
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """
    distance = distances(z)
    sigma = distance.topk(min(k, len(z)), largest=False).values[:, -1].mean()
    return (-distance.square() / (2 * sigma.square()).clamp(min=torch.finfo(z.dtype).tiny)).exp()


def linear_affinity(z: Tensor) -> Tensor:
    """Return W = z·zᵀ."""
    return z @ z.T


def agree(log_p: Tensor, affinity: Tensor, iterations: int, tolerance: float = 1e-8) -> Tensor:
    """Iterate Y ← softmax(log p + W·Y) from Y = p, and return log Y.

    Each step minimises the energy −Σ Y·(log p + W·Y_before) − H(Y). The minimum is −Σ logsumexp(log p + W·Y_before).
    The iteration stops when the minimum changes by no more than ``tolerance`` times itself.

    >>> p = torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    >>> agree(p.log(), torch.zeros(2, 2), iterations=10).exp()
    tensor([[0.6000, 0.4000],
            [0.1000, 0.9000]])
    >>> agree(p.log(), torch.ones(2, 2), iterations=100).argmax(1)
    tensor([1, 1])
    """
    log_y, before = log_p, log_p.new_full((), torch.nan)
    settled = torch.zeros((), dtype=torch.bool, device=log_p.device)
    for _ in range(iterations):
        if settled.device.type == "cpu" and settled:
            break  # another device goes on without changing anything: the host would wait for it at every step
        logits = log_p + affinity @ log_y.exp()
        normaliser = logits.logsumexp(1, keepdim=True)
        energy = -normaliser.sum()
        log_y = torch.where(settled, log_y, logits - normaliser)
        settled = settled | ((energy - before).abs() <= tolerance * before.abs())
        before = energy
    return log_y
