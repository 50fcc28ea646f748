"""Copies of backbones that no longer learn, made to be fast: the one place that decides how.

Convolutions take in the stored normalisation, the sum and the activation that follow them (`FusedConv`), maps have
their channels last, and a large batch goes through a block in parts that fit the processor's cache. A copy computes the
same features as its backbone, up to rounding. `python -m benchmarks.forward_cost` measures the gain.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from itta.functional.extremes import extremes
from itta.nn.backbone import After, Backbone, keep
from itta.nn.fused_conv import forget_prepared, has_kernel
from itta.nn.fusion import fuse_convolutions

USUAL = 1e6  # pixels lie in [0, 1], and weights and maps of trained networks are of that order too
WHOLE = 16 * 2**20  # bytes of the largest map of a batch that is not parted
PART = 4 * 2**20  # bytes of the largest map of a part, for each thread


@torch.inference_mode(False)
@torch.no_grad()
def fast_copy(backbone: Backbone) -> Backbone:
    """Return a copy for inference only. The backbone itself is returned if there is nothing to gain, or a risk.

    That is so in other precisions and on other devices, which have no fused operators here; if it walks through its
    blocks in its own way; and if weights are not finite or huge, because fused activations would hide the overflow.
    """
    ways = ("forward", "until", "resume")
    own_way = any(getattr(type(backbone), way) is not getattr(Backbone, way) for way in ways)
    if backbone.precision != "float32":
        return backbone
    if own_way or any(t.dtype != torch.float32 or t.device.type != "cpu" for t in backbone.parameters()):
        return backbone
    found = InferenceCopy(backbone).eval().requires_grad_(False)
    tensors = [t for t in (*found.parameters(), *found.buffers()) if t.is_floating_point()]
    return found if all(is_usual(t) for t in tensors) else backbone


def is_usual(x: Tensor) -> bool:
    """Tell whether all values are finite, and far from overflow."""
    low, high = extremes(x)
    return bool((low > -USUAL) & (high < USUAL))


def takes(x: Tensor) -> bool:
    """Tell whether fast copies take the input. Counters of operations shall meet the ordinary ones, so they do not."""
    return _get_current_dispatch_mode() is None and is_usual(x)


class InferenceCopy(Backbone):
    """A backbone with fused copies of another backbone's stem and blocks. The other one takes unusual images.

    A fused ReLU turns NaN into 0. So an image so bright that the network overflows would get an answer like any other.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone.mean, backbone.std)
        self.block_names, self.dim = backbone.block_names, backbone.dim  # type: ignore[misc]
        self.in_channels, self.frozen_bn = backbone.in_channels, backbone.frozen_bn
        self.origin = (backbone,)  # a tuple, so that it is no submodule
        blocks = {name: backbone.get_submodule(name) for name in backbone.block_names}
        self.rest = copy.deepcopy(backbone, {id(block): nn.Identity() for block in blocks.values()}).eval()
        self.stem_part = fast_part(Stem(self.rest))
        for name, block in blocks.items():
            setattr(self, name, fast_part(block))

    def forward(self, x: Tensor, after: After = keep) -> Tensor:
        if not takes(x):
            return self.origin[0](x, after)
        first = self.block_names[0]
        return super().resume(first, super().until(first, x), after)

    def until(self, block: str, x: Tensor, after: After = keep) -> Tensor:
        if not takes(x):
            return self.origin[0].until(block, x, after)
        z = super().until(block, x, after)
        z.from_usual_images = True  # type: ignore[attr-defined]
        return z

    def resume(self, block: str, z: Tensor, after: After = keep) -> Tensor:
        usual = getattr(z, "from_usual_images", False) or takes(z)
        return super().resume(block, z, after) if usual else self.origin[0].resume(block, z, after)

    def normalise(self, x: Tensor) -> Tensor:
        """Do as the backbone does; the usual way in one pass over the images, which also puts channels last."""
        if type(self.rest).normalise is not Backbone.normalise or not has_kernel(x) or x.shape[1] != len(self.mean):
            return self.rest.normalise(x)
        mean, std = (torch.tensor(values, dtype=torch.double).view(1, -1, 1, 1) for values in (self.mean, self.std))
        scale, shift = (1 / std).to(x.dtype), (-mean / std).to(x.dtype)
        return torch.addcmul(shift, x, scale, out=torch.empty_like(x, memory_format=torch.channels_last))

    def stem(self, x: Tensor) -> Tensor:
        return self.stem_part(x.contiguous(memory_format=torch.channels_last))

    def pool(self, z: Tensor) -> Tensor:
        return self.rest.pool(z)


class Stem(nn.Module):
    """The stem of a backbone as a module of its own."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone.stem(x)


class InParts(nn.Module):
    """A block that treats every image by itself, run on parts of a batch.

    Maps that are larger than the cache are read from memory again by every layer, and memory for the largest ones is
    asked of the system, and given back, at every layer. Parts avoid both.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.largest: dict[torch.Size, int] = {}  # shape of one input -> bytes of the largest map; of the last shape

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1 or not has_kernel(x):
            return self.block(x)
        shape = x.shape[1:]
        if shape not in self.largest:
            self.block(x[:1])  # weights are prepared here: they are no maps
            with LargestMap() as found:
                self.block(x[:1])
            self.largest = {shape: found.bytes}
            forget_prepared(self.block)  # weights for one image may lie in another order than for many
        size = len(x) * self.largest[shape]
        if size <= WHOLE:
            return self.block(x)
        parts = min(len(x), math.ceil(size / min(PART * torch.get_num_threads(), WHOLE)))
        return torch.cat([self.block(part) for part in x.tensor_split(parts)])


class LargestMap(TorchDispatchMode):
    """Note the size of the largest tensor that is made inside the ``with``."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not out.is_mkldnn:
            self.bytes = max(self.bytes, out.numel() * out.element_size())
        return out


def fast_part(block: nn.Module) -> nn.Module:
    """Return a copy of a block with fused convolutions, run in parts if it treats every image by itself."""
    found = fuse_convolutions(block)
    if found is None:
        return copy.deepcopy(block).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps, alone = found
    return InParts(steps) if alone else steps
