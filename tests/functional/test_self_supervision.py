"""Losses without labels, written out view by view."""

import math

import pytest
import torch
from torch import Tensor

from itta.functional.augment import augment
from itta.functional.self_supervision import byol, draw_views, make_views, nt_xent, rotate, unit


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a**2).sum().sqrt() * (b**2).sum().sqrt())


@pytest.mark.parametrize(("n", "temperature"), [(1, 0.5), (2, 0.5), (5, 0.1)])
def test_nt_xent(n: int, temperature: float) -> None:
    torch.manual_seed(0)
    h = torch.randn(2 * n, 4, dtype=torch.double, requires_grad=True)
    terms = []
    for i in range(2 * n):
        other = i + n if i < n else i - n
        powers = {k: (cosine(h[i], h[k]) / temperature).exp() for k in range(2 * n) if k != i}
        terms.append(-(powers[other] / sum(powers.values())).log())
    expected = sum(terms) / (2 * n)
    loss = nt_xent(h, temperature)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(value, h)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


def test_byol() -> None:
    torch.manual_seed(0)
    q, v = (torch.randn(6, 4, dtype=torch.double, requires_grad=True) for _ in range(2))
    first = sum(2 - 2 * cosine(q[i], v[i + 3].detach()) for i in range(3)) / 3
    second = sum(2 - 2 * cosine(q[i + 3], v[i].detach()) for i in range(3)) / 3
    loss = byol(q, v)
    torch.testing.assert_close(loss, first + second, rtol=1e-10, atol=1e-10)
    expected = torch.autograd.grad(first + second, q)
    loss.backward()
    torch.testing.assert_close((q.grad,), expected, rtol=1e-9, atol=1e-10)
    assert v.grad is None


def test_a_zero_vector_has_finite_derivatives() -> None:
    v = torch.zeros(2, 3, requires_grad=True)
    (g,) = torch.autograd.grad(byol(v, torch.ones(2, 3)), v, create_graph=True)
    (again,) = torch.autograd.grad(g.sum(), v)
    assert g.isfinite().all()
    assert again.isfinite().all()
    assert torch.equal(unit(v), v)
    assert math.isfinite(nt_xent(v, 0.5).item())


def test_rotation_quarter_by_quarter() -> None:
    x = torch.rand(9, 3, 5, 5)
    turns = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0, 1])
    for image, turned, k in zip(x, rotate(x, turns), turns):
        for _ in range(int(k)):  # counter-clockwise: the last column becomes the first row
            image = torch.stack([image[:, :, 4 - j] for j in range(5)], dim=1)
        assert torch.equal(turned, image)


def test_views_are_two_of_every_image_and_drawn_apart() -> None:
    x = torch.rand(3, 3, 8, 8)
    drawn = draw_views(3, torch.Generator().manual_seed(0))
    views = make_views(x, drawn)
    assert torch.equal(views, augment(torch.cat([x, x]), drawn))
    assert not torch.equal(views[:3], views[3:])


def test_views_come_from_the_global_generator_unless_one_is_given() -> None:
    def box(seed: int, generator: torch.Generator | None = None) -> Tensor:
        torch.manual_seed(seed)
        return draw_views(2, generator).box

    assert torch.equal(box(0), box(0))
    assert not torch.equal(box(0), box(1))
    given = [torch.Generator().manual_seed(7) for _ in range(2)]
    assert torch.equal(box(0, given[0]), box(1, given[1]))
