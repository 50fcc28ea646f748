import pytest
import torch
from torch import Tensor

from itta.functional.gradients import alignment, alignment_statistics

SHAPES = [(7, 3, 3), (50,), (), (4, 9)]


def random_gradients(seed: int, scale: float = 1.0, shift: float = 0.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(s, dtype=torch.float64, generator=generator) + shift for s in SHAPES]


def flatten(gs: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gs])


def deviation(g: Tensor) -> Tensor:
    return ((g - g.mean()).square().sum() / (g.numel() - 1)).sqrt()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-6, 0.0), (1.0, 5.0), (1e3, -2.0)])
def test_alignment_is_eq_5(scale: float, shift: float) -> None:
    g_main, g_wcont = random_gradients(0), random_gradients(1, scale, shift)
    for g in g_wcont:
        g.requires_grad_()
    a, b = flatten(g_main), flatten(g_wcont)
    standard_a = (a - a.mean()) / deviation(a)
    standard_b = (b - b.detach().mean()) / deviation(b.detach())
    loss = (standard_a - standard_b).square().mean()
    v = torch.autograd.grad(loss, g_wcont)

    found = alignment(g_main, [g.detach() for g in g_wcont])
    assert found is not None
    assert found.loss.item() == pytest.approx(loss.item(), rel=1e-11)
    assert found.cosine.item() == pytest.approx(torch.corrcoef(torch.stack([a, b.detach()]))[0, 1].item(), rel=1e-11)
    for main, wcont, expected in zip(g_main, g_wcont, v):
        got = found.direction(main, wcont.detach())
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11 * float(flatten(list(v)).abs().max()))


def test_direction_leaves_its_arguments_alone() -> None:
    g_main, g_wcont = random_gradients(0), random_gradients(1)
    found = alignment(g_main, g_wcont)
    assert found is not None
    found.direction(g_main[0], g_wcont[0])
    assert torch.equal(g_main[0], random_gradients(0)[0])
    assert torch.equal(g_wcont[0], random_gradients(1)[0])


def test_equal_and_opposite_gradients() -> None:
    g = random_gradients(0)
    same, opposite = alignment(g, [3 * x for x in g]), alignment(g, [-x for x in g])
    assert same is not None
    assert opposite is not None
    n = flatten(g).numel()
    assert same.loss.item() == pytest.approx(0, abs=1e-12)
    assert opposite.loss.item() == pytest.approx(4 * (n - 1) / n)


def test_statistics_of_float32_are_added_up_in_double() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ([torch.randn(100_000, generator=generator) for _ in range(3)] for _ in "ab")
    b[1] = b[1].view(100, 10, 100).transpose(1, 2)  # lies in memory in another order than its partner
    a[1] = a[1].view(100, 100, 10)
    found = alignment_statistics(a, b)
    exact = [flatten(gs).double() for gs in (a, b)]
    assert found.dtype == torch.float64
    expected = [m for g in exact for m in (g.mean(), deviation(g))] + [exact[0] @ exact[1]]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_nothing_to_align(bad: float) -> None:
    g, other = random_gradients(0), [torch.full_like(x, bad) for x in random_gradients(0)]
    assert alignment(g, other) is None
    assert alignment(other, g) is None
