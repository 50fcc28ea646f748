"""Deep Residual Learning for Image Recognition. He, Zhang, Ren, Sun, CVPR 2016. https://arxiv.org/abs/1512.03385

ResNet-18, 34 and 50 with torchvision's parameter names, so torchvision's weights load without renaming. The blocks are
layer1 to layer4, and each ends in a ReLU. A bottleneck has its stride on the 3×3 convolution, as torchvision's has.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from itta.nn.backbone import Backbone
from itta.nn.conv import Conv2d


def shortcut(n_in: int, n_out: int, stride: int) -> nn.Sequential | None:
    """Return a projection if the shape changes, else None."""
    if stride == 1 and n_in == n_out:
        return None
    return nn.Sequential(Conv2d(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(n_in, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = Conv2d(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = shortcut(n_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.bn1(self.conv1(x)))
        z = self.bn2(self.conv2(z))
        return F.relu(z + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = self.expansion * width
        self.conv1, self.bn1 = Conv2d(n_in, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = Conv2d(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = Conv2d(width, n_out, 1), nn.BatchNorm2d(n_out)
        self.downsample = shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.bn1(self.conv1(x)))
        z = F.relu(self.bn2(self.conv2(z)))
        z = self.bn3(self.conv3(z))
        return F.relu(z + (x if self.downsample is None else self.downsample(x)))


class ResNet(Backbone):
    block_names = ("layer1", "layer2", "layer3", "layer4")

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(3, 64, 7, stride=2), nn.BatchNorm2d(64)
        n_in = 64
        for i, (name, depth) in enumerate(zip(self.block_names, depths)):
            width, units = 64 * 2**i, []
            for j in range(depth):
                units.append(block(n_in, width, stride=2 if i > 0 and j == 0 else 1))
                n_in = width * block.expansion
            setattr(self, name, nn.Sequential(*units))
        self.dim = n_in
        for module in self.modules():
            if isinstance(module, Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stem(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)


def resnet18() -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet34() -> ResNet:
    return ResNet(BasicBlock, (3, 4, 6, 3))


def resnet50() -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3))
