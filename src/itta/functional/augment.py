"""DomainBed's augmentation, on whole batches: random crop, flip, colour jitter, grey.

DomainBed calls torchvision image by image. Three things differ here. The crop is taken from the stored S x S image, and
its box is not rounded to pixels. The order of the jitter is fixed (brightness, contrast, saturation, hue) instead of
random. Values stay floats between the steps; torchvision rounds them to 8 bits.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.functional.transfers import send

SCALE = (0.7, 1.0)  # area of the crop
RATIO = (3 / 4, 4 / 3)  # width / height of the crop
JITTER = 0.3
FLIP = 0.5
GREY = 0.1
_ATTEMPTS = 10  # boxes drawn per image; if none fits, the whole image is taken, as in torchvision
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation:
    """The random values of the augmentation, for each image of a batch. `no_augmentation` has the neutral values."""

    box: Tensor  # [N, 4] top, left, height, width, as shares of the image
    flip: Tensor  # [N] bool
    brightness: Tensor  # [N] factor
    contrast: Tensor  # [N] factor
    saturation: Tensor  # [N] factor
    hue: Tensor  # [N] rotation, in turns of the colour circle
    grey: Tensor  # [N] bool


def no_augmentation(n: int) -> Augmentation:
    """Return the augmentation that changes nothing."""
    ones, never = torch.ones(n), torch.zeros(n, dtype=torch.bool)
    box = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(n, 4)
    return Augmentation(box, never, ones, ones, ones, torch.zeros(n), never)


def draw_augmentation(n: int, generator: torch.Generator) -> Augmentation:
    """Draw an augmentation for n images."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n).uniform_(low, high, generator=generator)

    return Augmentation(
        box=_draw_box(n, generator),
        flip=torch.rand(n, generator=generator) < FLIP,
        brightness=uniform(1 - JITTER, 1 + JITTER),
        contrast=uniform(1 - JITTER, 1 + JITTER),
        saturation=uniform(1 - JITTER, 1 + JITTER),
        hue=uniform(-JITTER, JITTER),
        grey=torch.rand(n, generator=generator) < GREY,
    )


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 images to float32 in [0, 1], with contiguous channels whatever the memory format of the bytes."""
    return images.to(torch.float32, memory_format=torch.contiguous_format) / 255


def augment(images: Tensor, drawn: Augmentation) -> Tensor:
    """Apply an augmentation to images [N, 3, S, S], uint8 or floats in [0, 1], and return floats."""
    x = images if images.is_floating_point() else to_float(images)
    brightness, contrast, saturation, hue = (
        send(value, x.device, x.dtype).view(-1, 1, 1, 1)
        for value in (drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue)
    )
    grey = send(drawn.grey, x.device).view(-1, 1, 1, 1)
    x = _crop(x, send(drawn.box, x.device, x.dtype), send(drawn.flip, x.device))
    x = (x * brightness).clamp_(0, 1)
    x = _blend(x, _luma(x).mean((2, 3), keepdim=True), contrast)
    x = _blend(x, _luma(x), saturation)
    x = _turn_hue(x, hue)
    return torch.where(grey, _luma(x), x)


def _draw_box(n: int, generator: torch.Generator) -> Tensor:
    shape = (n, _ATTEMPTS)
    area = torch.empty(shape).uniform_(*SCALE, generator=generator)
    low, high = torch.tensor(RATIO).log().tolist()
    ratio = torch.empty(shape).uniform_(low, high, generator=generator).exp()
    height, width = (area / ratio).sqrt(), (area * ratio).sqrt()
    fits = (height <= 1) & (width <= 1)
    first = fits.byte().argmax(1, keepdim=True)  # the first of equal values, so the first box that fits
    some = fits.any(1)
    height = torch.where(some, height.gather(1, first)[:, 0], 1.0)
    width = torch.where(some, width.gather(1, first)[:, 0], 1.0)
    top = torch.rand(n, generator=generator) * (1 - height)
    left = torch.rand(n, generator=generator) * (1 - width)
    return torch.stack((top, left, height, width), dim=1)


def _crop(x: Tensor, box: Tensor, flip: Tensor) -> Tensor:
    """Cut the boxes out, scale them to full size, and mirror some. No sample reads pixels outside its box."""
    top, left, height, width = (box * x.shape[-1]).unsqueeze(-1).unbind(1)  # [N, 1] each, in pixels
    centre = torch.arange(x.shape[-1], device=x.device) + 0.5
    rows = _positions(centre, top, height, x.shape[-1])  # [N, S]
    columns = _positions(centre, left, width, x.shape[-1])
    columns = torch.where(flip.unsqueeze(-1), columns.flip(1), columns)
    grid = torch.stack(
        (columns.unsqueeze(1).expand(-1, x.shape[-1], -1), rows.unsqueeze(2).expand(-1, -1, x.shape[-1])), dim=-1
    )
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _positions(centre: Tensor, start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return the positions of the output pixels in the input along one axis, from -1 to 1 as grid_sample wants them."""
    inside = (start + centre * (length / size)).clamp(start + 0.5, start + length - 0.5)
    return inside * (2 / size) - 1


def _luma(x: Tensor) -> Tensor:
    red, green, blue = x.split(1, dim=1)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]  # [N, 1, S, S]


def _blend(x: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return torch.lerp(other, x, share).clamp_(0, 1)


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue and keep value and chroma: conversion to HSV and back, without computing the saturation."""
    red, green, blue = x.split(1, dim=1)
    low = torch.minimum(torch.minimum(red, green), blue)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - low
    safe = chroma.clamp(min=1e-12)
    hue = torch.where(  # in sixths of the circle
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = hue + 6 * turn
    hue = hue - 6 * (hue / 6).floor()  # `remainder` is several times slower
    shares = torch.cat(((hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()), dim=1)
    return low + chroma * shares.clamp(0, 1)
