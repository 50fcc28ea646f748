import numpy as np
import pytest
import torch
from torch import Tensor

from itta.nn.style_mixing import EPS, MixDraw, draw_beta, draw_mix, mix_style, style

BLOCKS = ("one", "two")


def naive_style(channel: np.ndarray) -> tuple[float, float]:
    n = channel.size
    mean = sum(channel.ravel()) / n
    return mean, (sum((v - mean) ** 2 for v in channel.ravel()) / (n - 1) + EPS) ** 0.5


def naive_mix(z: np.ndarray, lam: np.ndarray, partner: np.ndarray) -> np.ndarray:
    """Image by image and channel by channel, as the paper writes it; z is [B, C, positions]."""
    out = np.empty_like(z)
    for i in range(len(z)):
        for c in range(z.shape[1]):
            mean, std = naive_style(z[i, c])
            other_mean, other_std = naive_style(z[partner[i], c])
            mean_mix = lam[i] * mean + (1 - lam[i]) * other_mean
            std_mix = lam[i] * std + (1 - lam[i]) * other_std
            out[i, c] = (z[i, c] - mean) / std * std_mix + mean_mix
    return out


def example(*shape: int) -> Tensor:
    scale = torch.linspace(0.1, 3, shape[0], dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale + scale


DRAW = MixDraw("one", torch.tensor([0.0, 0.3, 1.0, 0.8], dtype=torch.float64), torch.tensor([2, 0, 3, 1]))


def test_maps_are_mixed_by_image_and_channel() -> None:
    z = example(4, 3, 5, 6)
    expected = naive_mix(z.flatten(2).numpy(), DRAW.lam.numpy(), DRAW.partner.numpy())
    torch.testing.assert_close(mix_style(z, DRAW).flatten(2).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_tokens_are_mixed_over_the_positions() -> None:
    z = example(4, 9, 3)  # [B, N, C]
    expected = naive_mix(z.transpose(1, 2).numpy(), DRAW.lam.numpy(), DRAW.partner.numpy())
    torch.testing.assert_close(mix_style(z, DRAW).transpose(1, 2).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_given_styles_take_the_partners_place() -> None:
    z = example(4, 3, 5, 6)
    mean, std = (s.flatten(1)[DRAW.partner] for s in style(z))
    given = MixDraw("one", DRAW.lam, style=(mean, std))
    assert torch.equal(mix_style(z, given), mix_style(z, DRAW))


def test_styles_are_constants_for_the_gradient() -> None:
    z = example(4, 3, 5, 6).requires_grad_()
    (g,) = torch.autograd.grad(mix_style(z, DRAW).sum(), z)
    _, std = style(z)
    lam = DRAW.lam.view(-1, 1, 1, 1)
    scale = lam + (1 - lam) * std[DRAW.partner] / std
    torch.testing.assert_close(g, scale.expand_as(z), rtol=1e-13, atol=0)


def test_one_keeps_the_image_and_mixing_with_oneself_changes_nothing() -> None:
    z = example(4, 3, 5, 6)
    keep_all = MixDraw("one", torch.ones(4), torch.tensor([1, 2, 3, 0]))
    torch.testing.assert_close(mix_style(z, keep_all), z, rtol=1e-13, atol=1e-13)
    oneself = MixDraw("one", torch.rand(4), torch.arange(4))
    torch.testing.assert_close(mix_style(z, oneself), z, rtol=1e-13, atol=1e-13)


def test_flat_and_one_pixel_maps_stay_finite() -> None:
    z = torch.cat([torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 4, 4)])
    assert torch.isfinite(mix_style(z, DRAW)).all()
    assert torch.isfinite(mix_style(torch.rand(4, 3, 1, 1), DRAW)).all()


def test_drawing_is_a_function_of_the_generator() -> None:
    a, b, c = (draw_mix(50, BLOCKS, 0.1, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert a.block == b.block
    assert torch.equal(a.lam, b.lam)
    assert torch.equal(a.partner, b.partner)
    assert not torch.equal(a.lam, c.lam)
    assert sorted(a.partner.tolist()) == list(range(50))
    before = torch.get_rng_state()
    draw_mix(5, BLOCKS, 0.1, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_coin_for_the_block() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = [draw_mix(2, BLOCKS, 0.1, generator).block for _ in range(400)]
    assert 150 < blocks.count("one") < 250


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_lambda_is_beta(alpha: float) -> None:
    """Mean ½, variance 1/(4(2α + 1)); bounds of five standard errors."""
    n = 20_000
    lam = draw_beta(n, alpha, torch.Generator().manual_seed(0))
    variance = 1 / (4 * (2 * alpha + 1))
    assert ((lam >= 0) & (lam <= 1)).all()
    assert lam.mean().item() == pytest.approx(0.5, abs=5 * (variance / n) ** 0.5)
    assert lam.var().item() == pytest.approx(variance, abs=5 * 0.25 / n**0.5)
