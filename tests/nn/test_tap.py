"""Stepping into a pass: what is differentiated, what is not, and that nothing is left behind."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.errors import InputError
from itta.functional.heat_maps import enlarge, heat, hot_zone, iou
from itta.nn.backbone import Backbone
from itta.nn.small_cnn import SmallCNN
from itta.nn.tap import BlockTap, find_block


class Colours(Backbone):
    """Channels that show red, green and blue where they are, at half the resolution."""

    block_names = ("sharp", "coarse")
    dim = 3

    def __init__(self) -> None:
        super().__init__(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.sharp, self.coarse = nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.AvgPool2d(2)
        nn.init.ones_(self.sharp.weight)

    def stem(self, x: Tensor) -> Tensor:
        return x


class Tokens(Backbone):
    block_names = ("embed", "mix")
    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Conv2d(3, 4, 4, 4), nn.Flatten(2)

    def stem(self, x: Tensor) -> Tensor:
        return x

    def pool(self, z: Tensor) -> Tensor:
        return z.mean(-1)


class Pooled(Colours):
    """The last block has one cell."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = nn.AdaptiveAvgPool2d(1)


QUADRANTS = {"upper left": (0, 0), "upper right": (0, 8), "lower left": (8, 0), "lower right": (8, 8)}


@pytest.mark.parametrize("block", Colours.block_names)
@pytest.mark.parametrize("where", QUADRANTS)
def test_the_quadrant_with_the_evidence_lights_up(where: str, block: str) -> None:
    """A red square on grey noise; red speaks for class 0, green for class 1. Zone of a quarter of the pixels.

    IoU with the quadrant: 1 at full resolution; at half of it, where edges blur, above 0.85.
    """
    torch.manual_seed(0)
    row, column = QUADRANTS[where]
    x = 0.1 * torch.rand(1, 1, 16, 16).expand(1, 3, 16, 16).contiguous()
    x[0, 0, row : row + 8, column : column + 8] += 0.8
    quadrant = torch.zeros(1, 16, 16, dtype=torch.bool)
    quadrant[0, row : row + 8, column : column + 8] = True
    head = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]])

    tap = BlockTap(block)
    backbone = Colours()
    with torch.enable_grad():
        logits = tap.run(lambda: backbone(x, tap.step_in)) @ head.T
        main, other = F.cross_entropy(logits, torch.tensor([0]), reduction="none"), -logits[:, 1]
    for_red, for_green = (enlarge(m, 16) for m in tap.maps([main, other]))
    found = iou(hot_zone(heat(for_red, "lowers"), 0.25), quadrant).item()
    assert found == 1 if block == "sharp" else found > 0.85
    assert iou(hot_zone(heat(for_green, "lowers"), 0.25), quadrant).item() < 0.5


@pytest.mark.parametrize("block", SmallCNN.block_names)
def test_only_what_lies_behind_the_block_is_recorded(block: str) -> None:
    torch.manual_seed(0)
    backbone, tap = SmallCNN(width=8), BlockTap(block)
    z = tap.run(lambda: backbone(torch.rand(2, 3, 16, 16), tap.step_in))
    assert tap.a.is_leaf
    assert tap.a.requires_grad
    behind = backbone.block_names[backbone.index(block) + 1 :]
    found = torch.autograd.grad(z.sum() + 0 * tap.a.sum(), list(backbone.parameters()), allow_unused=True)
    reached = {name.split(".")[0] for (name, _), g in zip(backbone.named_parameters(), found) if g is not None}
    assert reached == set(behind)


def test_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    backbone, x = SmallCNN(width=8), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        before = backbone(x)
    tap = BlockTap("block2")
    z = tap.run(lambda: backbone(x, tap.step_in))
    tap.maps([z.square().mean(1)])
    assert torch.equal(z, before)  # stepping in changes no value
    for module in backbone.modules():
        hooks = [name for name, value in vars(module).items() if "hook" in name and isinstance(value, dict) and value]
        assert hooks == []
    assert all(p.grad is None for p in backbone.parameters())
    assert torch.is_grad_enabled()
    with torch.no_grad():
        tap.run(lambda: backbone(x, tap.step_in))
        assert not torch.is_grad_enabled()


def test_a_pass_that_fails_leaves_gradients_as_they_were() -> None:
    tap = BlockTap("block1")

    def fail() -> Tensor:
        tap.take("block1", torch.ones(1))
        raise RuntimeError

    with torch.no_grad(), pytest.raises(RuntimeError):
        tap.run(fail)
    with torch.no_grad():
        try:
            tap.run(fail)
        except RuntimeError:
            assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_the_block_is_the_last_with_an_extent() -> None:
    assert find_block(SmallCNN(width=8), 16) == "block4"
    assert find_block(SmallCNN(width=8), 16, "block2") == "block2"
    assert find_block(Pooled(), 16) == "sharp"
    assert find_block(Tokens(), 16) == "embed"


@pytest.mark.parametrize(
    ("backbone", "size", "block", "told"),
    [
        (Tokens(), 16, "mix", r"mix gives tokens of shape \(4, 16\): choose from embed"),
        (Pooled(), 16, "coarse", r"coarse gives a single cell of shape \(3, 1, 1\): choose from sharp"),
        (Pooled(), 1, None, "take a convolutional backbone, or larger images"),
        (SmallCNN(width=8), 16, "block9", "unknown block 'block9'.*block1, block2, block3, block4"),
    ],
)
def test_what_gives_no_map_is_refused(backbone: Backbone, size: int, block: str | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        find_block(backbone, size, block)
