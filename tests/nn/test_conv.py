import pytest
import torch
import torch.nn.functional as F

from itta.nn import conv as module
from itta.nn.conv import FEW_POSITIONS, Conv2d


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (4, 4), (1, 3), (3, 5), (8, 8)])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_value_and_gradients(height: int, width: int, size: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = Conv2d(3, 5, size, stride).double()
    x = torch.randn(2, 3, height, width, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x, conv.weight, stride=stride, padding=size // 2)
    got = conv(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert got.is_contiguous()
    g = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(got, (x, conv.weight), g), torch.autograd.grad(expected, (x, conv.weight), g)
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_only_small_maps_take_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    unfold = F.unfold

    def noting(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        sizes.append(x.shape[-2:].numel())
        return unfold(x, *args, **kwargs)

    monkeypatch.setattr(module.F, "unfold", noting)
    conv = Conv2d(3, 5, 3)
    for n in (1, 2, 3, 8):
        conv(torch.rand(1, 3, n, n))
    assert sizes == [1, 4]
    assert FEW_POSITIONS == 4
