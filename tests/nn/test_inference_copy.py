"""Fast copies of backbones: the same features, block by block, whatever the backbone, the image size and the batch."""

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.nn import BACKBONES, Backbone, inference_copy, make_backbone
from itta.nn.batch_norm import batch_norms, use_batch_statistics
from itta.nn.fused_conv import FusedConv
from itta.nn.fusion import Steps
from itta.nn.inference_copy import InferenceCopy, InParts, fast_copy

pytestmark = pytest.mark.slow


def lively(backbone: Backbone) -> Backbone:
    """Give the normalisation statistics and weights that differ from channel to channel."""
    generator = torch.Generator().manual_seed(0)
    for norm in batch_norms(backbone).values():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        for tensor, low, high in (
            (norm.running_mean, -0.1, 0.1),
            (norm.running_var, 0.5, 1.5),
            (norm.weight.data, 0.5, 1.5),
            (norm.bias.data, -0.1, 0.1),
        ):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return backbone.eval().requires_grad_(False)


def make(name: str) -> Backbone:
    torch.manual_seed(0)
    return lively(make_backbone(name, "none"))


def images(n: int, size: int) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Within 1e-5, as a share of the largest value where that exceeds 1."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few images, also for small images."""
    monkeypatch.setattr(inference_copy, "WHOLE", 2**17)
    monkeypatch.setattr(inference_copy, "PART", 2**16)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", BACKBONES)
def test_the_features_are_the_backbones(name: str) -> None:
    backbone, x = make(name), images(5, 49)  # maps of 49, 25, 13, 7, 4 and 2 pixels
    fast = fast_copy(backbone)
    with torch.no_grad():
        assert_near(fast(x), backbone(x))
        assert_near(fast(x[:2]), backbone(x[:2]))  # another batch size, weights prepared for the first
        assert_near(fast(F.interpolate(x, 40)), backbone(F.interpolate(x, 40)))  # another image size


@pytest.mark.parametrize("name", BACKBONES)
def test_every_block_gives_what_the_backbones_block_gives(name: str) -> None:
    """With a change after each block, as restyled passes and added blocks make."""
    backbone, x = make(name), images(3, 32)

    def restyle(block: str, z: Tensor) -> Tensor:
        seen[-1][block] = z.clone()
        return torch.cat([z, 0.9 * z + 0.01]) if block == backbone.block_names[0] else 1.1 * z

    seen: list[dict[str, Tensor]] = []
    features = []
    for net in (backbone, fast_copy(backbone)):
        seen.append({})
        with torch.no_grad():
            features.append(net(x, restyle))
    assert_near(features[1], features[0])
    for block, z in seen[0].items():
        assert_near(seen[1][block], z)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0"])
def test_the_input_of_a_block_is_not_overwritten(name: str) -> None:
    fast, x = fast_copy(make(name)), images(2, 64)
    with torch.no_grad():
        z = fast.until(fast.block_names[0], x)
        for block in fast.block_names[1:]:
            kept = z.clone()
            after = fast.get_submodule(block)(z)
            assert torch.equal(z, kept)
            z = after


def test_convolutions_take_in_all_that_follows_them() -> None:
    """A ResNet has no normalisation left, and sums and activations only in its convolutions."""
    fast = fast_copy(make("resnet18"))
    assert isinstance(fast, InferenceCopy)
    for name in fast.block_names:
        block = fast.get_submodule(name)
        assert isinstance(block, InParts)
        assert isinstance(block.block, Steps)
        assert all(isinstance(m, FusedConv) for m in block.block.modules_called)
        assert len(block.block.steps) == len(block.block.modules_called)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0", "small_cnn"])
def test_gradients_pass_through_to_the_input(name: str) -> None:
    """In double precision: in single precision rounding decides about values near zero, and a ReLU's gradient jumps."""
    backbone = make(name).double()
    assert fast_copy(backbone) is backbone  # there is no fused operator for it
    x = images(2, 32).double()
    found = []
    for net in (backbone, InferenceCopy(backbone)):
        leaf = x.clone().requires_grad_()
        found += torch.autograd.grad(net(leaf).square().sum(), leaf)
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_the_backbone_is_not_changed_and_shares_no_weights() -> None:
    backbone, x = make("resnet18"), images(2, 32)
    state = copy.deepcopy(backbone.state_dict())
    fast = fast_copy(backbone)
    expected = fast(x)
    assert all(torch.equal(v, state[k]) for k, v in backbone.state_dict().items())
    for p in backbone.parameters():
        p.data.zero_()
    assert torch.equal(fast(x), expected)
    assert torch.equal(copy.deepcopy(fast)(x), expected)


@pytest.mark.parametrize("name", ["resnet18", "small_cnn"])
def test_an_overflow_shows_as_in_the_backbone(name: str) -> None:
    """A fused ReLU would turn NaN into 0, and the answer would look like any other."""
    backbone, x = make(name), images(3, 32)
    x[1] = 1e38
    fast = fast_copy(backbone)
    first = fast.block_names[0]
    with torch.no_grad():
        assert same(fast(x), backbone(x))
        assert same(fast.resume(first, fast.until(first, x)), backbone(x))
    assert not backbone(x)[1].isfinite().all()
    for bad in (torch.nan, torch.inf, 1e30):
        broken = copy.deepcopy(backbone)
        next(broken.parameters()).data[0] = bad
        assert fast_copy(broken) is broken


def same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


class Mean(nn.Module):
    """A layer that reads the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Sized(nn.Module):
    """A layer whose operations depend on the size of its input, and a convolution of its own kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Doubled(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.shape[-1] > 2 else x


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Own(Backbone):
    """A user's backbone. ``torch`` cannot tell the operations of its second block beforehand."""

    block_names = ("one", "two")
    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)
        self.one = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), Mean(), Doubled(4, 4, 1), nn.ReLU())
        self.two = Sized()

    def stem(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return (z + self.first.bias.view(1, -1, 1, 1)).relu()  # a sum that oneDNN cannot do

    def pool(self, z: Tensor) -> Tensor:
        return self.last(super().pool(z))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("prepare", [lambda b: None, use_batch_statistics])
def test_a_users_backbone_keeps_its_meaning(prepare: Callable[[Backbone], None]) -> None:
    """Unknown convolutions stay as they are, and a block that reads the whole batch gets the whole batch."""
    torch.manual_seed(0)
    backbone, x = lively(Own()), images(6, 48)
    prepare(backbone)
    fast = fast_copy(backbone)
    with torch.no_grad():
        assert_near(fast(x), backbone(x))
    assert not isinstance(fast.get_submodule("one"), InParts)


def test_a_sum_with_itself_is_not_taken_for_a_shortcut() -> None:
    class Twice(Own):
        def stem(self, x: Tensor) -> Tensor:
            z = self.first(x)
            return z + z

    torch.manual_seed(0)
    backbone, x = lively(Twice()), images(2, 8)
    with torch.no_grad():
        assert_near(fast_copy(backbone)(x), backbone(x))


class Walks(Own):
    def forward(self, x: Tensor, after: Callable[[str, Tensor], Tensor] = lambda name, z: z) -> Tensor:
        return 2 * super().forward(x, after)


def test_a_backbone_that_walks_its_own_way_stays_as_it_is() -> None:
    backbone = Walks()
    assert fast_copy(backbone) is backbone


def test_a_dropped_copy_is_freed_at_once() -> None:
    """And not only when Python collects objects that refer to each other."""
    gc.collect()
    gc.disable()
    try:
        fast = fast_copy(make("resnet18"))
        fast(images(2, 32))
        weight = weakref.ref(next(m for m in fast.modules() if isinstance(m, FusedConv)).weight)
        weights = [weakref.ref(p) for p in fast.origin[0].parameters()]  # type: ignore[union-attr, index]
        del fast
        assert weight() is None
        assert all(own() is None for own in weights)
    finally:
        gc.enable()


def test_half_precision_and_other_devices_take_the_ordinary_operators() -> None:
    fast, x = fast_copy(make("efficientnet_lite0")), images(2, 32)
    with torch.no_grad():
        expected = fast(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(fast(x).float(), expected, rtol=0.1, atol=0.1)
    assert fast.block_shapes(32) == make("efficientnet_lite0").block_shapes(32)  # on the meta device
