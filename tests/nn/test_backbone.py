import pytest
import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.nn import BACKBONES, make_backbone
from itta.nn.backbone import IMAGENET_MEAN, IMAGENET_STD, evaluating

SIZE = 64


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return make_backbone(name, "none").eval()


@pytest.mark.parametrize("name", BACKBONES)
def test_forward_until_and_resume_agree_bit_for_bit(name: str) -> None:
    backbone, x = built(name), torch.rand(2, 3, SIZE, SIZE)
    shift = {block: 0.01 * i for i, block in enumerate(backbone.block_names, 1)}
    seen = []

    def after(block: str, z: Tensor) -> Tensor:
        seen.append(block)
        return z + shift[block]

    with torch.no_grad():
        features, shifted = backbone(x), backbone(x, after)
        assert tuple(seen) == backbone.block_names
        for block in backbone.block_names:
            assert torch.equal(backbone.resume(block, backbone.until(block, x)), features)
            assert torch.equal(backbone.resume(block, backbone.until(block, x, after), after), shifted)
    assert features.shape == (2, backbone.dim)
    assert not torch.equal(features, shifted)


@pytest.mark.parametrize(
    ("name", "size", "shapes"),
    [
        ("resnet18", 224, [(64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]),
        ("resnet50", 64, [(256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 2, 2)]),
        ("efficientnet_lite0", 64, [(24, 16, 16), (40, 8, 8), (112, 4, 4), (1280, 2, 2)]),
        ("small_cnn", 28, [(64, 28, 28), (128, 14, 14), (128, 14, 14), (128, 14, 14)]),
    ],
)
def test_block_shapes(name: str, size: int, shapes: list[tuple[int, ...]]) -> None:
    backbone = make_backbone(name, "none").train()
    statistics = [b.clone() for b in backbone.buffers()]
    assert backbone.block_shapes(size) == dict(zip(backbone.block_names, shapes))
    assert backbone.training
    assert all(torch.equal(b, s) for b, s in zip(backbone.buffers(), statistics))


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("resnet18", IMAGENET_MEAN, IMAGENET_STD),
        ("efficientnet_lite0", (127 / 255,) * 3, (128 / 255,) * 3),
        ("small_cnn", (0.5,) * 3, (0.5,) * 3),
    ],
)
def test_the_normalisation_belongs_to_the_weights(name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    x = torch.rand(2, 3, 5, 5, dtype=torch.float64)
    got = make_backbone(name, "none").normalise(x)
    for c in range(3):
        torch.testing.assert_close(got[:, c], (x[:, c] - mean[c]) / std[c], rtol=1e-13, atol=0)


def test_frozen_bn_stays_on_its_statistics_and_still_learns() -> None:
    backbone = make_backbone("resnet18", "none").freeze_bn().train()
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert backbone.training
    assert len(norms) == 20
    assert not any(m.training for m in norms)
    backbone.eval().train()
    assert not any(m.training for m in norms)
    nn.Sequential(backbone).train()
    assert not any(m.training for m in norms)
    before = [b.clone() for b in backbone.buffers()]
    backbone(torch.rand(2, 3, 32, 32)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, backbone.buffers()))
    assert all(m.weight.grad.abs().sum() > 0 for m in norms)


def test_pretrained_networks_are_frozen_and_others_are_not() -> None:
    assert make_backbone("efficientnet_lite0").frozen_bn
    assert not make_backbone("efficientnet_lite0", "none").frozen_bn
    assert not make_backbone("small_cnn").frozen_bn


def test_evaluating_puts_the_mode_back() -> None:
    backbone = make_backbone("small_cnn").train()
    with evaluating(backbone):
        assert not backbone.training
    assert backbone.training
    with pytest.raises(KeyError), evaluating(backbone):
        raise KeyError
    assert backbone.training


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(InputError, match=r"'resnet19'.*resnet18.*efficientnet_lite0.*timm:MODEL"):
        make_backbone("resnet19")
    with pytest.raises(InputError, match=r"block 'layer9'.*layer1, layer2, layer3, layer4"):
        make_backbone("resnet18", "none").until("layer9", torch.rand(1, 3, 32, 32))


def test_bytes_are_refused_with_the_cure() -> None:
    """Divided by a deviation below one, in bytes, they would be no numbers at all."""
    with pytest.raises(InputError, match=r"torch.uint8: divide bytes by 255"):
        built("resnet18")(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
