"""Distances between the features of two or more domains."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from itta.functional.affinity import distances

GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)  # DomainBed's bandwidths


def coral(features: Sequence[Tensor]) -> Tensor:
    """Return the mean over pairs of domains of ‖μ_a − μ_b‖²/d + ‖Σ_a − Σ_b‖²_F/d²; 0 for one domain.

    Σ has the divisor n − 1.

    >>> coral([torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [4.0]])])
    tensor(37.)
    """
    means = [z.mean(0) for z in features]
    centred = [z - mean for z, mean in zip(features, means)]
    covariances = [z.T @ z / (len(z) - 1) for z in centred]
    terms = [
        (means[a] - means[b]).square().mean() + (covariances[a] - covariances[b]).square().mean()
        for a, b in combinations(range(len(features)), 2)
    ]
    return torch.stack(terms).mean() if terms else features[0].new_zeros(())


def mmd(features: Sequence[Tensor], expanded: bool = False) -> Tensor:
    """Return the mean over pairs of domains of mean K(a, a) + mean K(b, b) − 2 mean K(a, b), K = Σ_γ exp(−γ‖u − v‖²).

    Distances are computed from differences. ``expanded`` computes them as ‖u‖² + ‖v‖² − 2u·v, as DomainBed does, and
    loses small distances to cancellation.

    >>> mmd([torch.zeros(2, 3), torch.zeros(4, 3)])
    tensor(0.)
    """
    z, sizes = torch.cat(list(features)), [len(f) for f in features]
    kernel = gaussian_kernel(expanded_distances(z) if expanded else distances(z).square())
    means = torch.stack([torch.stack([b.mean() for b in row.split(sizes, 1)]) for row in kernel.split(sizes)])
    terms = [means[a, a] + means[b, b] - 2 * means[a, b] for a, b in combinations(range(len(sizes)), 2)]
    return torch.stack(terms).mean() if terms else z.new_zeros(())


def expanded_distances(z: Tensor) -> Tensor:
    """Return ‖z_i‖² + ‖z_j‖² − 2 z_i·z_j, at least 1e-30."""
    norms = z.square().sum(1)
    return (norms[:, None] + norms[None, :] - 2 * z @ z.T).clamp(min=1e-30)


def gaussian_kernel(distances: Tensor) -> Tensor:
    """Return Σ_γ exp(−γ·distance)."""
    return sum((torch.exp(-gamma * distances) for gamma in GAMMAS), torch.zeros_like(distances))
