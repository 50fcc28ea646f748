"""MixStyle: mix the style of a feature map, the mean and deviation of its channels, with that of another image.

Domain Generalization with MixStyle. Zhou, Yang, Qiao, Xiang, ICLR 2021. https://arxiv.org/abs/2104.02008
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itta.functional.transfers import send

EPS = 1e-6
CHUNK = 2**18  # values at a time, so that they stay in the cache
CHUNK_LAST = 2**21  # where channels are last, and larger pieces are faster


@dataclass(frozen=True)
class MixDraw:
    """The random part of MixStyle, for one batch."""

    block: str  # after which it acts
    lam: Tensor  # [B], the share of an image's own style
    partner: Tensor | None = None  # [B], the image that gives the other style: a permutation of the batch
    style: tuple[Tensor, Tensor] | None = None  # or the other styles themselves: mean and deviation, [B, C] each


def draw_mix(n: int, blocks: tuple[str, ...], alpha: float, generator: torch.Generator | None = None) -> MixDraw:
    """Draw one block for the batch, and λ ~ Beta(α, α) and a partner for each image."""
    block = blocks[int(torch.randint(len(blocks), (), generator=generator))]
    return MixDraw(block, draw_beta(n, alpha, generator), torch.randperm(n, generator=generator))


def draw_beta(n: int, alpha: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw λ ~ Beta(α, α), [n], with NumPy, seeded by the generator: torch's Beta takes no generator."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, size=n))


def style(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel over the positions, without gradient: [B, C, 1, 1] or [B, 1, C]."""
    positions = (2, 3) if z.ndim == 4 else (1,)
    n_positions = z[0].numel() // z.shape[1 if z.ndim == 4 else -1]
    means, squares = [], []
    size = CHUNK if z.is_contiguous() else CHUNK_LAST
    for part in z.detach().split(max(1, size // z[0].numel())):  # var_mean, not vectorised, takes 10 times as long
        mean = part.mean(positions, keepdim=True)
        means.append(mean)
        squares.append((part - mean).square_().sum(positions, keepdim=True))
    return torch.cat(means), (torch.cat(squares) / max(1, n_positions - 1) + EPS).sqrt()


def mix_style(z: Tensor, draw: MixDraw) -> Tensor:
    """Return (z − μ)/σ·σ_mix + μ_mix with μ_mix = λμ + (1−λ)μ_partner, and σ_mix likewise."""
    mean, std = style(z)
    lam = send(draw.lam, z.device, z.dtype).view(-1, *[1] * (z.ndim - 1))
    if draw.style is not None:
        other_mean, other_std = (send(s, z.device, z.dtype).view_as(mean) for s in draw.style)
    else:
        assert draw.partner is not None
        partner = send(draw.partner, z.device)
        other_mean, other_std = mean[partner], std[partner]
    scale = lam + (1 - lam) * other_std / std
    return z * scale + (lam * mean + (1 - lam) * other_mean - mean * scale)
