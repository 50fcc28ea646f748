"""The distance of a batch's mean and covariance from the source's, relative to the distance that chance gives."""

from typing import NamedTuple

import torch
from torch import Tensor

from itta.functional.transfers import widen


class Moments(NamedTuple):
    mean: Tensor  # μ, [d]
    covariance: Tensor  # Σ, [d, d]
    fourth: Tensor  # E‖z − μ‖⁴, a number


def moment_distance(z: Tensor, source: Moments) -> Tensor:
    """Return ‖Σ_z − Σ‖²/E‖Σ_n − Σ‖² + ½·‖μ_z − μ‖²/E‖μ_n − μ‖², where E is over n images of the source.

    A term is left out if its E is zero: then all features of the source are equal. So is the covariance of one image.

    >>> import torch
    >>> unit = Moments(torch.zeros(1), torch.ones(1, 1), torch.tensor(3.0))
    >>> moment_distance(torch.tensor([[2.0], [4.0]]), unit)
    tensor(9.5000)
    """
    n, mean = len(z), z.mean(0)
    of_mean, of_covariance = expected_distances(n, source)
    distance = relative(0.5 * (mean - source.mean).square().sum(), of_mean)
    if n < 2:
        return distance
    centred = z - mean
    covariance = centred.T @ centred / (n - 1)
    return distance + relative((covariance - source.covariance).square().sum(), of_covariance)


def relative(distance: Tensor, expected: Tensor) -> Tensor:
    """Divide a distance by its expected value; 0 if nothing is expected."""
    some = expected > 0
    return distance.where(some, 0.0) / expected.where(some, 1.0).to(distance)


def expected_distances(n: int, source: Moments) -> tuple[Tensor, Tensor]:
    """Return E‖μ_n − μ‖² and E‖Σ_n − Σ‖² for n images of the source, Σ_n unbiased.

    E‖μ_n − μ‖² = tr Σ/n and E‖Σ_n − Σ‖² = (E‖z − μ‖⁴ − ‖Σ‖²)/n + ((tr Σ)² + ‖Σ‖²)/(n(n − 1)).

    >>> import torch
    >>> expected = expected_distances(5, Moments(torch.zeros(1), torch.ones(1, 1), torch.tensor(3.0)))
    >>> [round(float(e), 6) for e in expected]  # normal: 2/(n − 1)
    [0.2, 0.5]
    """
    trace, square = widen(source.covariance.trace()), widen(source.covariance.square().sum())
    if n < 2:
        return trace / n, torch.zeros_like(trace)
    return trace / n, (widen(source.fourth) - square) / n + (trace**2 + square) / (n * (n - 1))
