"""Distances between domains against sums written out, value and gradient."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from itta.functional.affinity import distances
from itta.functional.alignment import coral, expanded_distances, mmd

Distance = Callable[[Tensor, Tensor], Tensor]


def random_domains(sizes: Sequence[int], d: int = 4, scale: float = 1.0, shift: float = 0.0) -> list[Tensor]:
    """Double-precision features; each domain has its own mean and spread."""
    g = torch.Generator().manual_seed(0)
    return [
        shift + scale * ((1 + e) * torch.randn(n, d, generator=g, dtype=torch.double) + e) for e, n in enumerate(sizes)
    ]


def naive_coral(a: Tensor, b: Tensor) -> Tensor:
    d, total = a.shape[1], torch.zeros((), dtype=a.dtype)
    means = [[sum(z[:, i]) / len(z) for i in range(d)] for z in (a, b)]
    for i in range(d):
        total = total + (means[0][i] - means[1][i]) ** 2 / d
        for j in range(d):
            entries = [sum((v[i] - m[i]) * (v[j] - m[j]) for v in z) / (len(z) - 1) for z, m in zip((a, b), means)]
            total = total + (entries[0] - entries[1]) ** 2 / d**2
    return total


def naive_mmd(a: Tensor, b: Tensor) -> Tensor:
    def mean_kernel(p: Tensor, q: Tensor) -> Tensor:
        widths = (0.001, 0.01, 0.1, 1, 10, 100, 1000)
        terms = [torch.exp(-gamma * ((u - v) ** 2).sum()) for u in p for v in q for gamma in widths]
        return sum(terms) / (len(p) * len(q))

    return mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b)


def over_pairs(distance: Distance, features: Sequence[Tensor]) -> Tensor:
    terms = [distance(a, b) for i, a in enumerate(features) for b in features[:i]]
    return sum(terms) / len(terms)


def assert_same(
    function: Callable[[Sequence[Tensor]], Tensor], distance: Distance, domains: list[Tensor]
) -> tuple[Tensor, ...]:
    """Compare value and gradient, and return the gradient."""
    for z in domains:
        z.requires_grad_()
    got, expected = function(domains), over_pairs(distance, domains)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
    gradients = torch.autograd.grad(got, domains)
    for g, e in zip(gradients, torch.autograd.grad(expected, domains)):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)
    return gradients


@pytest.mark.parametrize("sizes", [(4, 4), (2, 5), (2, 2, 3, 3)])
def test_coral(sizes: Sequence[int]) -> None:
    assert_same(coral, naive_coral, random_domains(sizes))


@pytest.mark.parametrize(("scale", "expanded"), [(0.03, False), (1.0, False), (10.0, False), (0.03, True), (1.0, True)])
@pytest.mark.parametrize("sizes", [(1, 4), (4, 3, 2)])
def test_mmd(sizes: Sequence[int], scale: float, expanded: bool) -> None:
    """Three scales: some kernels are flat, none is flat, and most kernels are 0."""
    assert_same(lambda z: mmd(z, expanded), naive_mmd, random_domains(sizes, scale=scale))


def test_mmd_where_images_coincide() -> None:
    """Equal images within a domain and across two. The gradient of the root at 0 must not appear in the result."""
    a, b = random_domains((4, 3), scale=0.3)
    a[1], b[2] = a[0], a[0]
    gradients = assert_same(mmd, naive_mmd, [a, b])
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[0][0].norm() > 0


@pytest.mark.parametrize("function", [coral, mmd])
def test_one_domain_has_no_distance(function: Callable[[Sequence[Tensor]], Tensor]) -> None:
    found = function(random_domains((4,)))
    assert found.item() == 0
    assert found.dtype == torch.double


@pytest.mark.parametrize("function", [coral, mmd])
def test_equal_domains_have_no_distance(function: Callable[[Sequence[Tensor]], Tensor]) -> None:
    z = random_domains((4,))[0]
    assert function([z, z.flip(0), z]).item() == pytest.approx(0, abs=1e-14)


def test_mmd_of_features_far_apart() -> None:
    """Only the kernel of an image with itself remains, 7. The penalty is 7/n_a + 7/n_b and has no gradient."""
    a, b = (z.requires_grad_() for z in random_domains((4, 2), scale=1e4))
    found = mmd([a, b])
    assert found.item() == pytest.approx(7 / 4 + 7 / 2)
    assert all(not g.any() for g in torch.autograd.grad(found, [a, b]))
    assert mmd([a[:1], b[:1]]).item() == pytest.approx(14)


@pytest.mark.parametrize(("squared_norm", "n"), [(260.0, 8), (1e5, 8), (1e5, 16)])
def test_mmd_in_single_precision(squared_norm: float, n: int) -> None:
    """Features with a large common part: differences keep the digits that the expanded square loses.

    Of more than 25 images cdist by itself would take the square.
    """
    d = 64
    features = [z.float() for z in random_domains((n, n), d, scale=0.005, shift=(squared_norm / d) ** 0.5)]
    exact = mmd([z.double() for z in features]).item()
    assert mmd(features).item() == pytest.approx(exact, rel=1e-5)
    assert abs(mmd(features, expanded=True).item() - exact) > 1e-2 * exact


@pytest.mark.parametrize("squared_norm", [260.0, 1e5])
def test_the_distance_to_itself_in_single_precision(squared_norm: float) -> None:
    z = random_domains((64,), 512, scale=(squared_norm / 512) ** 0.5)[0].float()
    assert not distances(z).diagonal().any()
    assert expanded_distances(z).diagonal().max() > 1e-7 * squared_norm
    assert expanded_distances(z).min() >= 1e-30


def test_the_gradient_of_mmd_in_single_precision() -> None:
    features = [z.float() for z in random_domains((8, 8), 64, scale=0.005, shift=10.0)]

    def gradient(domains: list[Tensor], expanded: bool = False) -> Tensor:
        domains = [z.requires_grad_() for z in domains]
        return torch.cat(torch.autograd.grad(mmd(domains, expanded), domains)).double()

    exact = gradient([z.double() for z in features])
    assert (gradient(features) - exact).norm() < 1e-5 * exact.norm()
    assert (gradient(features, expanded=True) - exact).norm() > 1e-2 * exact.norm()


def test_coral_in_single_precision() -> None:
    """Covariances are computed from centred features, so a large common mean costs only its own rounding."""
    features = [z.float() for z in random_domains((8, 6, 7), shift=3000.0)]
    exact = coral([z.double() for z in features])
    assert coral(features).item() == pytest.approx(exact.item(), rel=1e-4)
