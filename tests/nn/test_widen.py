"""A backbone with more input channels: an extra channel starts with the filters of the colour it copies."""

import copy

import pytest
import torch
from torch import Tensor, nn

from itta.nn import make_backbone
from itta.nn.backbone import Backbone

Pair = tuple[Backbone, Backbone]


@pytest.fixture(scope="module", params=["resnet18", "small_cnn", "efficientnet_lite0"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """A network, and a copy of it with two more input channels."""
    torch.manual_seed(0)
    plain = make_backbone(request.param, "none").double().eval()
    wide = copy.deepcopy(plain)
    wide.widen(2)
    return plain, wide


def first_conv(backbone: Backbone) -> nn.Conv2d:
    return next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))


def images() -> Tensor:
    return torch.rand(2, 5, 32, 32, generator=torch.Generator().manual_seed(1)).double()


def test_new_channels_copy_the_colours_in_turn(pair: Pair) -> None:
    plain, wide = pair
    old, new = first_conv(plain).weight, first_conv(wide).weight
    assert wide.in_channels == first_conv(wide).in_channels == 5
    assert torch.equal(new, torch.cat([old, old[:, :2]], 1))
    before, after = plain.state_dict(), wide.state_dict()
    assert before.keys() == after.keys()
    assert sum(not torch.equal(before[key], after[key]) for key in before) == 1


def test_more_channels_than_colours() -> None:
    backbone = make_backbone("small_cnn")
    old = first_conv(backbone).weight.clone()
    backbone.widen(4)
    assert torch.equal(first_conv(backbone).weight, torch.cat([old, old, old[:, :1]], 1))


def test_the_normalisation_leaves_further_channels_alone(pair: Pair) -> None:
    plain, wide = pair
    x = images()
    got = wide.normalise(x)
    assert torch.equal(got[:, :3], plain.normalise(x[:, :3]))
    assert torch.equal(got[:, 3:], x[:, 3:])
    for c in range(3):
        torch.testing.assert_close(got[:, c], (x[:, c] - wide.mean[c]) / wide.std[c], rtol=1e-13, atol=1e-15)


@torch.no_grad()
def test_an_extra_channel_adds_to_its_colour(pair: Pair) -> None:
    plain, wide = pair
    block, x = plain.block_names[0], images()
    colours = x[:, :3].clone()
    for c in range(2):
        colours[:, c] += x[:, 3 + c] * plain.std[c]
    got, before = wide.until(block, x), plain.until(block, x[:, :3])
    scale = before.abs().max().item()
    torch.testing.assert_close(got, plain.until(block, colours), rtol=1e-9, atol=1e-12 * scale)
    assert (got - before).abs().max() > 0.1 * scale
    x[:, 3:] = 0
    torch.testing.assert_close(wide.until(block, x), before, rtol=1e-9, atol=1e-12 * scale)


def test_a_widened_network_learns_and_knows_its_shapes(pair: Pair) -> None:
    plain, wide = pair
    assert wide.block_shapes(32) == plain.block_shapes(32)
    weight = first_conv(wide).weight
    assert any(weight is p for p in wide.parameters())
    (gradient,) = torch.autograd.grad(wide(images()).sum(), weight)
    assert (gradient.abs().sum((0, 2, 3)) > 0).all()
