"""Affinities, and the predictions made from them, against loops over pairs."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.functional.affinity import agree, distances, knn_affinity, linear_affinity, rbf_affinity


def features(n: int = 9, d: int = 5) -> Tensor:
    z = torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return z / z.norm(dim=1, keepdim=True)


def probabilities(n: int = 9, classes: int = 4) -> Tensor:
    logits = torch.randn(n, classes, generator=torch.Generator().manual_seed(n + 1), dtype=torch.float64)
    return (2 * logits).softmax(1)


def others(z: Tensor, i: int) -> list[tuple[float, int]]:
    """Distance and index of all other samples, nearest first."""
    return sorted((math.dist(z[i].tolist(), z[j].tolist()), j) for j in range(len(z)) if j != i)


@pytest.mark.parametrize("n", [1, 2, 4, 9])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_affinities(n: int, k: int) -> None:
    z = features(n)
    knn, rbf = torch.zeros(n, n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    far = []
    for i in range(n):
        far.append(sorted([0.0, *(d for d, _ in others(z, i))])[:k][-1])  # the sample itself is the first
        for _, j in others(z, i)[:k]:
            knn[i, j] = 1
    for i in range(n):
        for d, j in others(z, i):
            rbf[i, j] = math.exp(-(d**2) / (2 * (sum(far) / n) ** 2)) if k > 1 else 0.0
    assert torch.equal(knn_affinity(z, k), knn)
    torch.testing.assert_close(rbf_affinity(z, k), rbf, rtol=0, atol=1e-12)
    torch.testing.assert_close(linear_affinity(z), torch.tensor([[float(a @ b) for b in z] for a in z]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_duplicates(dtype: torch.dtype) -> None:
    """No sample is its own neighbour, even if others lie at distance 0. A bandwidth of 0 causes no division by 0."""
    z = features(1, 64).to(dtype).expand(40, -1)  # above 25 samples, where cdist by default computes a product
    assert not distances(z).any()
    w = knn_affinity(z, 5)
    assert not w.diagonal().any()
    assert (w.sum(1) == 5).all()
    assert torch.equal(rbf_affinity(z, 5), torch.ones(40, 40, dtype=dtype))
    pairs = features(3).to(dtype).repeat_interleave(2, 0)
    expected = torch.eye(3, dtype=dtype).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(rbf_affinity(pairs, 2), expected)


def test_the_bandwidth_counts_as_the_release_does() -> None:
    """The release takes the k smallest of each row of distances, and the diagonal is in the row."""
    z = features(12)
    distance = (z[None] - z[:, None]).norm(dim=-1)
    sigma = distance.sort(dim=1).values[:, 4].mean()  # k = 5
    torch.testing.assert_close(rbf_affinity(z, 5), torch.exp(-(distance**2) / (2 * sigma**2)), rtol=0, atol=1e-12)
    torch.testing.assert_close(rbf_affinity(z, 99), rbf_affinity(z, 12), rtol=0, atol=0)


def naive_agree(p: Tensor, w: Tensor, steps: int, start: Tensor | None = None) -> list[list[float]]:
    n, classes = p.shape
    y = (p if start is None else start).tolist()
    for _ in range(steps):
        pulls = [[sum(float(w[i, j]) * y[j][c] for j in range(n)) for c in range(classes)] for i in range(n)]
        y = [[float(p[i, c]) * math.exp(pulls[i][c]) for c in range(classes)] for i in range(n)]
        y = [[v / sum(row) for v in row] for row in y]
    return y


@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_iterations(steps: int) -> None:
    p, w = probabilities(), knn_affinity(features(), 3)
    expected = torch.tensor(naive_agree(p, w, steps), dtype=torch.float64)
    got = agree(p.log(), w, steps, tolerance=0.0).exp()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-8])
def test_it_stops_when_the_energy_has_settled(tolerance: float) -> None:
    """The energy: Σ Y·(log Y − log p − W·Y_before)."""
    p, w = probabilities(), rbf_affinity(features(), 3)
    y, energies = [p], []
    while len(energies) < 2 or abs(energies[-1] - energies[-2]) > tolerance * abs(energies[-2]):
        y.append(torch.tensor(naive_agree(p, w, steps=1, start=y[-1]), dtype=torch.float64))
        energies.append(float((y[-1] * (y[-1].log() - p.log() - w @ y[-2])).sum()))
    assert len(energies) < 100
    got = agree(p.log(), w, 100, tolerance).exp()
    torch.testing.assert_close(got, y[-1], rtol=0, atol=1e-12)
    assert tolerance < 1e-3 or not torch.allclose(got, agree(p.log(), w, 100).exp(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("w", [rbf_affinity(features(), 3), linear_affinity(features())], ids=["rbf", "linear"])
def test_every_step_lowers_the_energy(w: Tensor) -> None:
    """For a positive definite W, Σ KL(Y, p) − ½ Σ W_ij Y_i·Y_j never increases."""
    p, energies = probabilities(), []
    for steps in range(1, 20):
        log_y = agree(p.log(), w, steps, tolerance=0.0)
        y = log_y.exp()
        energies.append(float((y * (log_y - p.log())).sum() - 0.5 * (w * (y @ y.T)).sum()))
    assert all(b <= a + 1e-12 for a, b in zip(energies, energies[1:]))
    assert energies[-1] < energies[0] - 1e-3


def test_predictions_beyond_doubt() -> None:
    """The logarithm is finite even if a probability underflows to 0."""
    log_p = torch.tensor([[0.0, -2000.0], [-2000.0, 0.0]]).log_softmax(1)
    got = agree(log_p, torch.ones(2, 2), 100)
    assert torch.isfinite(got).all()
    assert got.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("affinity", [lambda z: knn_affinity(z, 3), lambda z: rbf_affinity(z, 3), linear_affinity])
def test_neighbours_settle_a_doubt(affinity: Callable[[Tensor], Tensor]) -> None:
    """Two clusters, certain of different classes. One image of the first cluster leans to the other class."""
    corners = torch.eye(2, dtype=torch.float64).repeat_interleave(5, 0)
    z = corners + 0.05 * torch.randn(10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = torch.where(corners > 0, 0.9, 0.1).double()
    p[2] = torch.tensor([0.45, 0.55])
    got = agree(p.log(), affinity(z / z.norm(dim=1, keepdim=True)), 100)
    assert got.argmax(1).tolist() == [0] * 5 + [1] * 5
