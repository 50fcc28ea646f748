"""A convolution for inference: stored batch normalisation, a sum and an activation are part of it.

The weights never change, so a CPU gets them once in the order in which its kernels read them. The kernels are
oneDNN's, which come with torch; torch offers them as operators without gradients. Everywhere else (another device,
another precision, a pass that needs gradients, an export) the layer calls the ordinary operators with the same weights.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from itta.nn.batch_norm import BatchNorm
from itta.nn.conv import Conv2d, elsewhere
from itta.nn.efficientnet import SameConv2d

Kernel = tuple[str, list[float]]  # oneDNN's name of an activation, and its limits
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda z: z, "relu": F.relu, "relu6": F.relu6}
ACTIVATIONS: dict[str, Kernel] = {"none": ("none", []), "relu": ("relu", []), "relu6": ("hardtanh", [0.0, 6.0])}


class Prepared(NamedTuple):
    """The arguments of oneDNN's operators for inputs of one shape."""

    settings: list[Any]  # weight, bias, padding, strides, dilation and groups, as the operators take them
    out: tuple[int, int]  # height and width of the output


class FusedConv(nn.Module):
    """activation(norm(conv(x)) + addend), with the normalisation folded into the convolution."""

    weight: Tensor
    bias: Tensor
    kinds: ClassVar[tuple[type[nn.Conv2d], ...]] = (nn.Conv2d, Conv2d, SameConv2d)  # no others: they may do more

    def __init__(self, conv: nn.Conv2d, norm: BatchNorm | None = None) -> None:
        super().__init__()
        weight, bias = folded(conv, norm)
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", bias)
        self.same = isinstance(conv, SameConv2d)
        self.stride, self.dilation, self.groups = list(conv.stride), list(conv.dilation), conv.groups
        self.padding = [] if self.same else [int(p) for p in conv.padding]
        self.activation = "none"
        self.overwrites = False  # whether the sum may be written into the addend
        self.prepared: dict[torch.Size, Prepared] = {}  # of the last shape: a service may see images of any size

    @staticmethod
    def can_fuse(module: nn.Module | None) -> bool:
        """Tell whether the module is a convolution that pads with zeros, of a class with a known ``forward``."""
        if not isinstance(module, nn.Conv2d) or type(module) not in FusedConv.kinds:
            return False
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        if has_kernel(x) and (addend is None or has_kernel(addend)):
            return self.kernel(x, addend)
        return self.convolve(x, addend)

    def kernel(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """Compute it by oneDNN's operators, for tensors that ``has_kernel`` allows."""
        settings, out = self.prepared.get(x.shape[-2:]) or self.prepare(x)
        x = x.contiguous(memory_format=torch.channels_last)
        kernel, limits = ACTIVATIONS[self.activation]
        ops = torch.ops.mkldnn
        if addend is None:
            return ops._convolution_pointwise.default(x, *settings, kernel, limits, "")
        if addend.shape != (len(x), len(self.bias), *out):
            return self.convolve(x, addend)
        last = None if kernel == "none" else kernel
        if self.overwrites:
            return ops._convolution_pointwise_.binary(addend, x, *settings, "add", 1.0, last, limits, "")
        return ops._convolution_pointwise.binary(x, addend, *settings, "add", 1.0, last, limits, "")

    def convolve(self, x: Tensor, addend: Tensor | None) -> Tensor:
        """Compute the same with the ordinary operators."""
        weight, padding = self.evenly_padded(x.shape[-2:]) if self.same else (self.weight, self.padding)
        z = F.conv2d(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return PLAIN[self.activation](z if addend is None else z + addend)

    def prepare(self, x: Tensor) -> Prepared:
        """Return the arguments for inputs of x's height and width; those of the last ones are kept."""
        shape = x.shape[-2:]
        weight, padding = self.evenly_padded(shape) if self.same else (self.weight, self.padding)
        spans = zip(shape, weight.shape[-2:], padding, self.stride, self.dilation)
        height, width = ((n + 2 * p - d * (size - 1) - 1) // stride + 1 for n, size, p, stride, d in spans)
        ready = in_order(weight, padding, self, x)
        settings = [ready, self.bias, padding, self.stride, self.dilation, self.groups]
        self.prepared = {shape: Prepared(settings, (height, width))}
        return self.prepared[shape]

    def evenly_padded(self, shape: torch.Size) -> tuple[Tensor, list[int]]:
        """Return weight and even padding that give TensorFlow's SAME padding, which puts odd pixels right and below.

        A kernel with one more row of zeros above, and one more column on the left, saves a padded copy of the input.
        """
        totals = [
            max((math.ceil(n / stride) - 1) * stride + size - n, 0)
            for n, size, stride in zip(shape, self.weight.shape[-2:], self.stride)
        ]
        down, across = (total % 2 for total in totals)
        return F.pad(self.weight, (across, 0, down, 0)), [(total + 1) // 2 for total in totals]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the prepared weights out of copies and pickles: they are made again."""
        return self.__dict__ | {"prepared": {}}


def forget_prepared(module: nn.Module) -> None:
    """Let the convolutions inside prepare their weights anew at the next pass."""
    for conv in module.modules():
        if isinstance(conv, FusedConv):
            conv.prepared = {}


def folded(conv: nn.Conv2d, norm: BatchNorm | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution with its normalisation folded in, computed in double precision."""
    with torch.no_grad():
        weight = conv.weight.detach()
        bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach().clone()
        if norm is None:
            return weight.clone(), bias
        parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        mean, var, scale, shift = (None if t is None else t.detach().double() for t in parts)
        assert mean is not None
        assert var is not None
        found = fuse_conv_bn_weights(weight.double(), bias.double(), mean, var, norm.eps, scale, shift)
        return found[0].detach().to(weight.dtype), found[1].detach().to(weight.dtype)


def in_order(weight: Tensor, padding: list[int], conv: FusedConv, x: Tensor) -> Tensor:
    """Return the weight in the order in which oneDNN reads it for inputs like x."""
    order = torch.ops.mkldnn._reorder_convolution_weight
    return order(
        weight.contiguous(memory_format=torch.channels_last),
        padding,
        conv.stride,
        conv.dilation,
        conv.groups,
        list(x.shape),
    )


def has_kernel(x: Tensor) -> bool:
    """Tell whether oneDNN's fused operators can take x: float32 on a CPU, no gradient, no autocast, no export."""
    if elsewhere(x) or x.dtype != torch.float32 or x.ndim != 4 or torch.is_autocast_enabled("cpu"):
        return False
    return torch.backends.mkldnn.is_available() and not (x.requires_grad and torch.is_grad_enabled())
