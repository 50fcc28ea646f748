"""The two views of ITTA: z, the features of the images, and z', the features of an augmented pass.

There are two augmentations. `MixDraw` is MixStyle after a block, the paper's choice. `NoiseDraw` is noise on the
feature vector, from the paper's appendix, and needs no other image:
A Simple Feature Augmentation for Domain Generalization. Li, Dai, Ge, Liu, Shan, Duan, ICCV 2021.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from itta.functional.transfers import send
from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_mixing import MixDraw, mix_style


@dataclass(frozen=True)
class NoiseDraw:
    """z' = a∘z + b with a ~ N(1, σ²) and b ~ N(0, σ²) for every image and dimension (SFA-S)."""

    scale: Tensor  # [B, dim]
    shift: Tensor  # [B, dim]


ViewDraw = MixDraw | NoiseDraw


def mixing_points(backbone: Backbone) -> tuple[str, ...]:
    """Return the blocks after which ITTA mixes styles: the first two."""
    return backbone.block_names[:2]


def draw_noise(n: int, dim: int, sigma: float, generator: torch.Generator | None = None) -> NoiseDraw:
    """Draw noise for n images."""
    a, b = torch.randn(2, n, dim, generator=generator) * sigma
    return NoiseDraw(1 + a, b)


def two_views(run: Callable[[After], Tensor], draw: ViewDraw, after: After = keep) -> tuple[Tensor, Tensor]:
    """Return z and z' from one pass. The two views share all layers before the mixing point.

    ``run`` is a pass of a backbone that takes ``after``. At the mixing point the batch is doubled: first the images,
    then their augmented copies.
    """
    if isinstance(draw, NoiseDraw):
        z = run(after)
        return z, add_noise(z, draw)
    z, z_aug = run(mixing(draw, after)).chunk(2)
    return z, z_aug


def add_noise(z: Tensor, draw: NoiseDraw) -> Tensor:
    """Return a∘z + b."""
    return send(draw.scale, z.device, z.dtype) * z + send(draw.shift, z.device, z.dtype)


def mixing(draw: MixDraw, after: After = keep) -> After:
    """Return a callback that doubles the batch at the drawn block and then calls ``after``."""

    def mix_and_go_on(block: str, z: Tensor) -> Tensor:
        return after(block, torch.cat([z, mix_style(z, draw)]) if block == draw.block else z)

    return mix_and_go_on
