import pytest
import torch
import torch.nn.functional as F

from itta.nn import conv as module
from itta.nn.conv import FEW_POSITIONS, Conv2d, depthwise_as_product, depthwise_is_slow


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


def test_only_small_maps_of_learning_weights_take_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with torch.no_grad():
        conv(torch.rand(1, 3, 2, 2))
    conv.requires_grad_(False)(torch.rand(1, 3, 2, 2, requires_grad=True))
    assert sizes == [1, 4]  # weights that stand still take the convolution


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (4, 4), (3, 5), (8, 8)])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2), (5, 1), (5, 2)])
def test_depthwise_as_a_product(height: int, width: int, size: int, stride: int) -> None:
    """Compare value, gradient and second gradient. The extra pixel of an odd padding is below and to the right."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, height, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 1, size, size, dtype=torch.float64, requires_grad=True)
    total = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in (height, width)]
    (up, left), (down, right) = ([t // 2 for t in total], [t - t // 2 for t in total])

    def differentiated(z: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(z.square().sum(), (x, weight), create_graph=True)
        length = sum(g.square().sum() for g in gradients)
        return [z, *gradients, *torch.autograd.grad(length, (x, weight))]

    expected = F.conv2d(F.pad(x, (left, right, up, down)), weight, stride=stride, groups=6)
    got = depthwise_as_product(x, weight, stride, (up, left))
    for mine, theirs in zip(differentiated(got), differentiated(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_only_weights_that_train_on_small_maps_take_the_product() -> None:
    trained, fixed = torch.rand(2, 1, 5, 5, requires_grad=True), torch.rand(2, 1, 5, 5)
    small, large = torch.rand(1, 2, 8, 8), torch.rand(1, 2, 9, 9)
    assert depthwise_is_slow(small, trained, 1)
    assert depthwise_is_slow(large, trained, 2)
    assert not depthwise_is_slow(large, trained, 1)
    assert not depthwise_is_slow(small, fixed, 1)
    with torch.no_grad():
        assert not depthwise_is_slow(small, trained, 1)
