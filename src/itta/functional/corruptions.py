"""Corruptions of images: stand-ins for a shift between domains, written as formulas on pixels.

Kinds of damage after Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations, ICLR 2019, https://arxiv.org/abs/1903.12261. The formulas and strengths are ours.

Each takes images x [B, 3, H, W] in [0, 1], a strength between 0 and 1 and a generator, and returns images in [0, 1].
Strength 0 leaves the images as they are. ``recolour`` also takes the partner that gives the colours.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Corruption = Callable[[Tensor, float, torch.Generator], Tensor]
WHITES = (0.299, 0.587, 0.114)  # how bright red, green and blue look


def blend(x: Tensor, other: Tensor, strength: float) -> Tensor:
    """Go from the images to others, by a share; clip to [0, 1].

    >>> blend(torch.zeros(1), torch.ones(1), 0.25)
    tensor([0.2500])
    """
    return (x + strength * (other - x)).clamp(0, 1)


def brightness_of(x: Tensor) -> Tensor:
    """Return the grey version of the images, [B, 1, H, W]."""
    return (x * x.new_tensor(WHITES).view(1, 3, 1, 1)).sum(1, keepdim=True)


def noise(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return (x + 0.5 * strength * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)


def speckle(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Replace some pixels by black or white."""
    drawn = torch.rand(len(x), 1, *x.shape[2:], generator=generator).to(x)
    return torch.where(drawn < 0.4 * strength, (drawn < 0.2 * strength).to(x), x)


def blur(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Convolve with a Gaussian that is up to a sixteenth of the image wide."""
    sigma = max(strength * x.shape[-1] / 16, 1e-3)
    reach = max(1, min(math.ceil(2.5 * sigma), min(x.shape[-2:]) - 1))
    at = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    weight = torch.exp(-(at**2) / (2 * sigma**2))
    kernel = (weight / weight.sum()).view(1, 1, 1, -1).expand(3, 1, 1, -1)
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), mode="reflect"), kernel, groups=3)
    return F.conv2d(F.pad(x, (0, 0, reach, reach), mode="reflect"), kernel.transpose(2, 3), groups=3).clamp(0, 1)


def pixelate(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Average over squares and enlarge again; at full strength an eighth of the resolution is left."""
    size = (round(x.shape[-2] / 8**strength), round(x.shape[-1] / 8**strength))
    small = F.interpolate(x, size=[max(1, s) for s in size], mode="area")
    return F.interpolate(small, size=x.shape[-2:], mode="nearest")


def contrast(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return blend(x, x.mean((1, 2, 3), keepdim=True), 0.95 * strength)


def darkness(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return x ** (1 + 4 * strength)


def glare(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return blend(x, torch.ones_like(x), 0.9 * strength)


def greyness(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return blend(x, brightness_of(x).expand_as(x), strength)


def inversion(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return blend(x, 1 - x, strength)


def channel_swap(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return blend(x, x[:, [1, 2, 0]], strength)


def edges(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Draw dark lines on white where the brightness changes."""
    grey = F.pad(brightness_of(x), (1, 1, 1, 1), mode="replicate")
    across, down = grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2], grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1]
    lines = 1 - (2 * (across**2 + down**2).sqrt()).clamp(0, 1)
    return blend(x, lines.expand_as(x), strength)


def two_tones(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Make pixels darker than the image's mean black and the others white."""
    grey = brightness_of(x)
    return blend(x, (grey > grey.mean((2, 3), keepdim=True)).to(x).expand_as(x), strength)


def occlusion(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Cover a square with grey, at a place drawn for each image; at full strength half of the area."""
    height, width = x.shape[-2:]
    side = strength * math.sqrt(0.5)
    top, left = (torch.rand(len(x), 1, 1, 1, generator=generator).to(x) * (1 - side) for _ in range(2))
    y = (torch.arange(height, device=x.device).to(x) / height).view(1, 1, -1, 1)
    across = (torch.arange(width, device=x.device).to(x) / width).view(1, 1, 1, -1)
    covered = (y >= top) & (y < top + side) & (across >= left) & (across < left + side)
    return torch.where(covered, 0.5, x)


def rotation(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Turn each image by up to a quarter, to a side drawn for it."""
    side = torch.randint(0, 2, (len(x),), generator=generator).to(x) * 2 - 1
    angle = side * strength * math.pi / 2
    zero = torch.zeros_like(angle)
    rows = [angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False).clamp(0, 1)


CORRUPTIONS: dict[str, Corruption] = {
    f.__name__.replace("_", " "): f
    for f in (
        *(noise, speckle, blur, pixelate, contrast, darkness, glare, greyness, inversion, channel_swap, edges),
        *(two_tones, occlusion, rotation),
    )
}


def recolour(x: Tensor, partner: Tensor, strength: float) -> Tensor:
    """Give each image the mean and deviation of the partner's colours; a strength above 1 exaggerates them."""
    mean, std = x.mean((2, 3), keepdim=True), x.std((2, 3), keepdim=True) + 1e-3
    other_mean, other_std = partner.mean((2, 3), keepdim=True), partner.std((2, 3), keepdim=True) + 1e-3
    wanted = (std + strength * (other_std - std)).clamp(min=1e-3)
    return ((x - mean) / std * wanted + mean + strength * (other_mean - mean)).clamp(0, 1)
