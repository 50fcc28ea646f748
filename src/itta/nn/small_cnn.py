"""A small convolutional network without pretrained weights, for tests and 28×28 digits.

It has four 3×3 convolutions, each followed by ReLU and then GroupNorm(8), like DomainBed's network for MNIST. So the
outputs of the blocks can be negative. The second block halves the resolution.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from itta.nn.backbone import Backbone


class ConvBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 3, stride, padding=1)
        self.norm = nn.GroupNorm(8, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(self.conv(x)))


class SmallCNN(Backbone):
    block_names = ("block1", "block2", "block3", "block4")

    def __init__(self, width: int = 64) -> None:
        super().__init__(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        self.block1 = ConvBlock(3, width)
        self.block2 = ConvBlock(width, 2 * width, stride=2)
        self.block3 = ConvBlock(2 * width, 2 * width)
        self.block4 = ConvBlock(2 * width, 2 * width)
        self.dim = 2 * width

    def stem(self, x: Tensor) -> Tensor:
        return x
