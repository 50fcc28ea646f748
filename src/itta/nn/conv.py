"""Convolution, with faster forms for maps of a few pixels on a CPU."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_POSITIONS = 4
FEW_PAIRS = 4096  # pairs of an input pixel and an output pixel: 8×8 maps


class Conv2d(nn.Conv2d):
    """A square, ungrouped convolution without bias; a matrix product while it learns, if its output has few positions.

    On small images the last blocks of a network (2×2 maps, for a ResNet on 64 pixels) spend most of their time in the
    gradient of the weights. There the CPU's convolution is two times slower than the product. Both give the same value
    up to rounding. Without that gradient the convolution is faster, and weights that stand still go through the same
    operation as in anybody's network.
    """

    def __init__(self, n_in: int, n_out: int, size: int, stride: int = 1) -> None:
        super().__init__(n_in, n_out, size, stride, padding=size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        height, width = (-(-n // stride) for n in x.shape[-2:])
        if elsewhere(x) or height * width > FEW_POSITIONS or not learns(self.weight):
            return super().forward(x)
        patches = F.unfold(x, size, padding=size // 2, stride=stride)  # [B, C·k², positions]
        z = F.linear(patches.transpose(1, 2).flatten(0, 1), self.weight.flatten(1))  # [B·positions, C']
        return z.view(len(x), height, width, -1).permute(0, 3, 1, 2).contiguous()


def learns(weight: Tensor) -> bool:
    """Tell whether this pass will give the weight a gradient."""
    return torch.is_grad_enabled() and weight.requires_grad


def elsewhere(x: Tensor) -> bool:
    """Tell whether the tensor is not on a CPU, or is being exported to run elsewhere. Both keep the convolution."""
    return torch.compiler.is_compiling() or x.device.type != "cpu"


def depthwise_is_slow(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Tell whether ``depthwise_as_product`` is faster: on small maps, if the weights are trained."""
    pixels = x.shape[-2] * x.shape[-1]
    return learns(weight) and not elsewhere(x) and pixels * -(-pixels // stride**2) <= FEW_PAIRS


def depthwise_as_product(x: Tensor, weight: Tensor, stride: int, before: tuple[int, int]) -> Tensor:
    """Compute a depthwise convolution as one matrix product per channel: [B, C, H, W] → [B, C, ⌈H/stride⌉, ⌈W/stride⌉].

    ``before`` is the padding above and to the left. The CPU's convolution takes many times as long for the gradient of
    the weights, most of all with 5×5 kernels, and computes gradients of gradients channel by channel. Both give the
    same value up to rounding. `python -m benchmarks.depthwise_cost` measures the difference.
    """
    n, c, height, width = x.shape
    matrix = weight.flatten(1) @ taps(weight.shape[-1], stride, (height, width), before).to(x.dtype)
    z = x.flatten(2).transpose(0, 1) @ matrix.view(c, height * width, -1)  # [C, B, pixels out]
    return z.transpose(0, 1).reshape(n, c, -(-height // stride), -(-width // stride))


@cache
def taps(size: int, stride: int, shape: tuple[int, int], before: tuple[int, int]) -> Tensor:
    """Return [size², pixels in · pixels out]: 1 if the kernel's tap connects the input pixel to the output pixel."""

    def along(n: int, first: int) -> Tensor:
        tap, pixel, out = (torch.arange(k) for k in (size, n, -(-n // stride)))
        return (pixel[:, None] == tap[:, None, None] + out * stride - first).float()

    down, across = map(along, shape, before)
    return torch.einsum("aip,bjq->abijpq", down, across).flatten(2).flatten(0, 1)
