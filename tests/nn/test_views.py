import torch

from itta.nn.small_cnn import SmallCNN
from itta.nn.style_mixing import MixDraw, mix_style
from itta.nn.views import draw_noise, two_views


def test_mixed_views_are_two_separate_passes() -> None:
    torch.manual_seed(0)
    backbone, x = SmallCNN(8).double(), torch.rand(4, 3, 16, 16, dtype=torch.float64)
    for name in backbone.block_names[:2]:
        draw = MixDraw(name, torch.rand(4), torch.tensor([1, 2, 3, 0]))
        z, z_aug = two_views(lambda after: backbone(x, after), draw)
        mixed = backbone(x, lambda b, h, draw=draw: mix_style(h, draw) if b == draw.block else h)
        torch.testing.assert_close(z, backbone(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(z_aug, mixed, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(z, z_aug)


def test_what_comes_after_the_mixing_sees_both_views() -> None:
    backbone, x, sizes = SmallCNN(8), torch.rand(4, 3, 16, 16), {}

    def after(block: str, z: torch.Tensor) -> torch.Tensor:
        sizes[block] = len(z)
        return z

    two_views(lambda a: backbone(x, a), MixDraw("block2", torch.rand(4), torch.arange(4)), after)
    assert sizes == {"block1": 4, "block2": 8, "block3": 8, "block4": 8}


def test_noise_view() -> None:
    draw = draw_noise(2000, 6, 0.5, torch.Generator().manual_seed(0))
    z = torch.randn(2000, 6, dtype=torch.float64)
    same, z_aug = two_views(lambda after: z, draw)
    assert same is z
    torch.testing.assert_close(z_aug, draw.scale.double() * z + draw.shift.double(), rtol=0, atol=0)
    for sample, mean in ((draw.scale, 1.0), (draw.shift, 0.0)):  # five standard errors
        assert abs(sample.mean().item() - mean) < 5 * 0.5 / 12_000**0.5
        assert abs(sample.std().item() - 0.5) < 5 * 0.5 / 24_000**0.5
    assert abs(torch.corrcoef(torch.stack([draw.scale.flatten(), draw.shift.flatten()]))[0, 1]) < 5 / 12_000**0.5
    again = draw_noise(2000, 6, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(again.scale, draw.scale)
