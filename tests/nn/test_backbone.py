from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from itta.errors import InputError
from itta.nn import BACKBONES, make_backbone
from itta.nn.backbone import IMAGENET_MEAN, IMAGENET_STD, evaluating

SIZE = 64


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return make_backbone(name, "none").eval()


@pytest.mark.slow
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


MINE = """
from functools import partial
from itta.nn.small_cnn import SmallCNN
class Mine(SmallCNN):
    def __init__(self): super().__init__(width=8)
def make(): return Mine()
narrow = partial(SmallCNN, width=16)
def make_nothing(): ...
def make_wide(width): ...
number = 1
class Other: ...
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own, `my_backbones`."""
    (tmp_path / "my_backbones.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("name", "dim"), [("Mine", 16), ("make", 16), ("narrow", 32)])
def test_a_backbone_of_ones_own(name: str, dim: int, tmp_path: Path) -> None:
    own = make_backbone(f"my_backbones:{name}")
    assert own(torch.rand(2, 3, 16, 16)).shape == (2, dim)
    assert not own.frozen_bn
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    again = make_backbone(f"my_backbones:{name}", str(tmp_path / "own.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), again.parameters()))


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("make_nothing", "gives None: expected a subclass of itta.nn.Backbone, or a function that returns one"),
        ("make_wide", "must be callable without arguments, but missing a required argument: 'width'"),
        ("number", "gives 1: expected a subclass"),
        ("Other", "gives <class 'my_backbones.Other'>: expected a subclass"),
        ("Nothing", "no attribute 'Nothing'. Write it as package.module:Name"),
    ],
)
def test_what_is_no_backbone_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"the backbone 'my_backbones:{name}'.*{message}"):
        make_backbone(f"my_backbones:{name}")


@pytest.mark.parametrize("name", ["my_backbones:Mine", "timm:hf-hub:somebody/model", "timm:local-dir:/tmp"])
def test_a_file_names_backbones_of_the_table_only(name: str) -> None:
    with pytest.raises(InputError, match=r"model\.json names the backbone.*--backbone package\.module"):
        make_backbone(name, "none", file=Path("model.json"))
    assert make_backbone("small_cnn", "none", file=Path("model.json")).dim == 128


def test_every_row_says_what_it_is_and_where_its_weights_come_from() -> None:
    assert all(entry.about for entry in BACKBONES.values())
    assert [name for name, entry in BACKBONES.items() if entry.imagenet is None] == ["small_cnn"]


def test_bytes_are_refused_with_the_cure() -> None:
    """In integers, the deviation would be rounded to 0 and the result would be infinite."""
    with pytest.raises(InputError, match=r"torch.uint8: divide bytes by 255"):
        built("resnet18")(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
