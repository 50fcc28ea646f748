"""Convolution, with faster ways for maps of a few pixels on a CPU."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_POSITIONS = 4
FEW_PAIRS = 4096  # of a pixel that comes in and one that goes out: 8×8 maps


class Conv2d(nn.Conv2d):
    """A square, ungrouped convolution without bias, as a matrix product where its output has only a few positions.

    The last blocks of a network on small images (2×2 maps, for a ResNet on 64 pixels) spend most of their time in the
    gradient of the weights, where the CPU's convolution is two times slower than the product. Same value, but for
    rounding.
    """

    def __init__(self, n_in: int, n_out: int, size: int, stride: int = 1) -> None:
        super().__init__(n_in, n_out, size, stride, padding=size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        height, width = (-(-n // stride) for n in x.shape[-2:])
        if elsewhere(x) or height * width > FEW_POSITIONS:
            return super().forward(x)
        patches = F.unfold(x, size, padding=size // 2, stride=stride)  # [B, C·k², positions]
        z = F.linear(patches.transpose(1, 2).flatten(0, 1), self.weight.flatten(1))  # [B·positions, C']
        return z.view(len(x), height, width, -1).permute(0, 3, 1, 2).contiguous()


def elsewhere(x: Tensor) -> bool:
    """Whether this is no CPU, or an export, which runs elsewhere: there a convolution is a convolution."""
    return torch.compiler.is_compiling() or x.device.type != "cpu"


def depthwise_is_slow(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether ``depthwise_as_product`` is the faster way: small maps, and weights to be trained."""
    pixels = x.shape[-2] * x.shape[-1]
    trains = torch.is_grad_enabled() and weight.requires_grad
    return trains and not elsewhere(x) and pixels * -(-pixels // stride**2) <= FEW_PAIRS


def depthwise_as_product(x: Tensor, weight: Tensor, stride: int, before: tuple[int, int]) -> Tensor:
    """Depthwise convolution [B, C, H, W] → [B, C, H/stride, W/stride], rounded up, as a matrix product per channel.

    ``before`` is the padding above and to the left. For the weights' gradient, most of all of 5×5 kernels, the CPU's
    convolution takes many times as long, and for gradients of gradients it goes channel by channel. Same value, but for
    rounding. `python -m benchmarks.depthwise_cost` measures it.
    """
    n, c, height, width = x.shape
    matrix = weight.flatten(1) @ taps(weight.shape[-1], stride, (height, width), before).to(x.dtype)
    z = x.flatten(2).transpose(0, 1) @ matrix.view(c, height * width, -1)  # [C, B, pixels out]
    return z.transpose(0, 1).reshape(n, c, -(-height // stride), -(-width // stride))


@cache
def taps(size: int, stride: int, shape: tuple[int, int], before: tuple[int, int]) -> Tensor:
    """[size², pixels in · pixels out]: 1 where a tap of the kernel takes a pixel in to a pixel out."""

    def along(n: int, first: int) -> Tensor:
        tap, pixel, out = (torch.arange(k) for k in (size, n, -(-n // stride)))
        return (pixel[:, None] == tap[:, None, None] + out * stride - first).float()

    down, across = map(along, shape, before)
    return torch.einsum("aip,bjq->abijpq", down, across).flatten(2).flatten(0, 1)
