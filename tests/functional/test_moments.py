"""Distances of moments: the expected distance is checked against an average over all possible samples."""

from itertools import product

import pytest
import torch
from torch import Tensor

from itta.functional.moments import Moments, expected_distances, moment_distance


def population(points: Tensor) -> Moments:
    """The moments of a source that draws each of the given points equally often."""
    mean = sum(points) / len(points)
    covariance = sum(torch.outer(p - mean, p - mean) for p in points) / len(points)
    fourth = sum(((p - mean) ** 2).sum() ** 2 for p in points) / len(points)
    return Moments(mean, covariance, fourth)


def sample_moments(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    mean = sum(rows) / len(rows)
    return mean, sum(torch.outer(r - mean, r - mean) for r in rows) / (len(rows) - 1)


@pytest.fixture
def points() -> Tensor:
    return torch.randn(4, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 4)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_expected_distances_are_means_over_all_samples(n: int, points: Tensor) -> None:
    source = population(points)
    of_mean, of_covariance = [], []
    for chosen in product(points, repeat=n):
        mean, covariance = sample_moments(list(chosen))
        of_mean.append(((mean - source.mean) ** 2).sum())
        of_covariance.append(((covariance - source.covariance) ** 2).sum())
    expected = torch.stack(of_mean).mean().item(), torch.stack(of_covariance).mean().item()
    assert [float(e) for e in expected_distances(n, source)] == pytest.approx(expected, rel=1e-12)


def test_a_sample_of_the_source_is_one_and_a_half_away_on_average(points: Tensor) -> None:
    source = population(points)
    distances = [moment_distance(torch.stack(chosen), source) for chosen in product(points, repeat=3)]
    assert torch.stack(distances).mean().item() == pytest.approx(1.5, rel=1e-12)


def test_value_and_gradient(points: Tensor) -> None:
    source, z = population(points), torch.rand(5, 3, dtype=torch.double, requires_grad=True)
    mean, covariance = sample_moments(list(z))
    of_mean, of_covariance = expected_distances(5, source)
    expected = ((covariance - source.covariance) ** 2).sum() / of_covariance
    expected = expected + 0.5 * ((mean - source.mean) ** 2).sum() / of_mean
    torch.testing.assert_close(moment_distance(z, source), expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(d, z)[0] for d in (moment_distance(z, source), expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_one_image_has_a_mean_only(points: Tensor) -> None:
    source, z = population(points), torch.ones(1, 3, dtype=torch.double)
    expected = 0.5 * ((z[0] - source.mean) ** 2).sum() / source.covariance.trace()
    assert moment_distance(z, source).item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_source_whose_features_are_all_alike_asks_for_nothing() -> None:
    alike = Moments(torch.ones(3), torch.zeros(3, 3), torch.zeros(()))
    assert moment_distance(torch.rand(4, 3), alike) == 0
