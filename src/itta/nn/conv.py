"""Convolution, with a faster way for maps of a few pixels on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_POSITIONS = 4


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
        exporting = (
            torch.compiler.is_compiling()
        )  # what is exported runs elsewhere, where a convolution is a convolution
        if exporting or x.device.type != "cpu" or height * width > FEW_POSITIONS:
            return super().forward(x)
        patches = F.unfold(x, size, padding=size // 2, stride=stride)  # [B, C·k², positions]
        z = F.linear(patches.transpose(1, 2).flatten(0, 1), self.weight.flatten(1))  # [B·positions, C']
        return z.view(len(x), height, width, -1).permute(0, 3, 1, 2).contiguous()
