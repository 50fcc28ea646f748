"""Backbones with named blocks, z^i = f_θ^i(z^{i-1}), and a callback after each block."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from itta.errors import InputError, unknown
from itta.functional.transfers import send
from itta.nn.batch_norm import batch_norms
from itta.settings import Precision

After = Callable[[str, Tensor], Tensor]
"""(name of a block, its output) -> the output to go on with. Augmented views and adaptive blocks use it; no hooks."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def keep(block: str, z: Tensor) -> Tensor:
    """Return the block's output unchanged."""
    return z


class Backbone(nn.Module):
    """A network from images in [0, 1] to feature vectors, cut into blocks with names.

    A subclass names its blocks in ``block_names``, holds each block as the attribute of that name, and defines ``stem``
    and, unless it averages over positions, ``pool``. The normalisation of the input belongs to the weights, so the
    backbone does it, not the data set. ``after`` may change the batch size, for example to add a second view.
    """

    block_names: ClassVar[tuple[str, ...]]
    dim: int

    def __init__(self, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD) -> None:
        super().__init__()
        self.mean, self.std = mean, std
        self.in_channels = len(mean)
        self.frozen_bn = False
        self.precision: Precision = "float32"

    def widen(self, extra: int) -> None:
        """Add input channels to the first convolution. Each starts with the filters of a colour, red first."""
        conv = next(m for m in self.modules() if isinstance(m, nn.Conv2d))
        self.in_channels += extra
        conv.in_channels = self.in_channels
        colours = torch.arange(self.in_channels) % len(self.mean)
        conv.weight = nn.Parameter(conv.weight.detach()[:, colours].contiguous())

    def normalise(self, x: Tensor) -> Tensor:
        """Subtract the colours' mean and divide by their deviation. Channels after the colours stay as they are."""
        if not x.is_floating_point():
            raise InputError(f"expected images as floats in [0, 1], got {x.dtype}: divide bytes by 255 first.")
        n = len(self.mean)
        if x.shape[1] > n:
            return torch.cat([self.normalise(x[:, :n]), x[:, n:]], 1)
        mean = send(torch.tensor(self.mean, dtype=x.dtype), x.device).view(1, -1, 1, 1)
        std = send(torch.tensor(self.std, dtype=x.dtype), x.device).view(1, -1, 1, 1)
        return (x - mean) / std

    def stem(self, x: Tensor) -> Tensor:
        """Turn normalised images into the input of the first block."""
        raise NotImplementedError

    def pool(self, z: Tensor) -> Tensor:
        """Turn the last block's output into features [B, dim]."""
        return z.mean((-2, -1))

    def rename_weights(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Rename the entries of a weights file to the names of this backbone."""
        return state

    def forward(self, x: Tensor, after: After = keep) -> Tensor:
        """Turn images [B, 3, H, W] in [0, 1] into features [B, dim]. ``after`` may replace each block's output."""
        first = self.block_names[0]
        return self.resume(first, self.until(first, x), after)

    def until(self, block: str, x: Tensor, after: After = keep) -> Tensor:
        """Run all blocks up to ``block`` and return its output. ``after`` is called for the blocks before it only."""
        z = self.compute(self.stem, self.normalise(x))
        for name in self.block_names[: self.index(block)]:
            z = after(name, self.compute(self.get_submodule(name), z))
        return self.compute(self.get_submodule(block), z)

    def resume(self, block: str, z: Tensor, after: After = keep) -> Tensor:
        """Continue from ``z``, the output of ``block`` that `until` returned, and return the features."""
        z = after(block, z)
        for name in self.block_names[self.index(block) + 1 :]:
            z = after(name, self.compute(self.get_submodule(name), z))
        return self.pool(z)

    def compute(self, part: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """Run a part of the network in the backbone's precision. Its result has the precision of ``z``.

        So callbacks, features, head and losses never see bfloat16.
        """
        if self.precision == "float32":
            return part(z)
        with torch.autocast(z.device.type, torch.bfloat16):
            return part(z).to(z.dtype)

    def call(self, after: After, block: str, z: Tensor) -> Tensor:
        """Call ``after`` in the middle of `compute`: outside of autocast, with a block's output in float32."""
        if self.precision == "float32" or after is keep:
            return after(block, z)
        with torch.autocast(z.device.type, enabled=False):
            return after(block, z.float())

    @property
    def last_block(self) -> nn.Module:
        return self.get_submodule(self.block_names[-1])

    def index(self, block: str) -> int:
        if block not in self.block_names:
            raise unknown("block", block, self.block_names)
        return self.block_names.index(block)

    def block_shapes(self, image_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each block's output for one image, without the batch dimension."""
        shapes: dict[str, tuple[int, ...]] = {}

        def note(name: str, z: Tensor) -> Tensor:
            shapes[name] = tuple(z.shape[1:])
            return z

        like = next(self.parameters())
        shape = 1, self.in_channels, image_size, image_size
        with torch.no_grad():
            try:  # without memory, however large the images are
                copy.deepcopy(self).to("meta").eval()(torch.zeros(shape, dtype=like.dtype, device="meta"), note)
            except (RuntimeError, NotImplementedError):  # a user's own network may look at values
                with evaluating(self):
                    self(torch.zeros(shape, dtype=like.dtype, device=like.device), note)
        return shapes

    def freeze_bn(self) -> "Backbone":
        """Keep batch normalisation on its stored statistics from now on. Its weights and biases still learn."""
        self.frozen_bn = True
        return self.train(self.training)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        if self.frozen_bn:
            for norm in batch_norms(self).values():
                norm.eval()
        return self


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module in evaluation mode inside the ``with``, and restore its mode afterwards."""
    was = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was)
