"""The two views of ITTA: z, the features as they are, and z', the features of an augmented pass.

Drawing is apart from applying. Two ways to augment: MixStyle after a block (the paper's choice, `MixDraw`), and noise
on the feature vector (its appendix, `NoiseDraw`), which needs no other image to mix with:
A Simple Feature Augmentation for Domain Generalization. Li, Dai, Ge, Liu, Shan, Duan, ICCV 2021.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
    a, b = torch.randn(2, n, dim, generator=generator) * sigma
    return NoiseDraw(1 + a, b)


def two_views(run: Callable[[After], Tensor], draw: ViewDraw, after: After = keep) -> tuple[Tensor, Tensor]:
    """Give z and z' from one pass, sharing all that lies before the point where they part.

    ``run`` is a backbone's pass that takes ``after``. At the mixing point the batch is doubled: first the images as
    they are, then their augmented twins.
    """
    if isinstance(draw, NoiseDraw):
        z = run(after)
        return z, draw.scale.to(z) * z + draw.shift.to(z)
    z, z_aug = run(mixing(draw, after)).chunk(2)
    return z, z_aug


def mixing(draw: MixDraw, after: After = keep) -> After:
    """Double the batch at the drawn block, then go on with ``after``."""

    def mix_and_go_on(block: str, z: Tensor) -> Tensor:
        return after(block, torch.cat([z, mix_style(z, draw)]) if block == draw.block else z)

    return mix_and_go_on
