"""DomainBed's augmentation for a batch of stored images on one CPU core, several times as fast as `augment`.

All steps work in place on one image before the next image begins, so its arrays stay in the processor's cache. Two
things differ from `augment`, both as in torchvision: the box of the crop is rounded to whole pixels, and the cropped
image to 8 bits. The colours are the same up to rounding error.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from itta.functional.augment import LUMA, Augmentation

_LUMA = np.array(LUMA, dtype=np.float32)
_ONE = np.ones(1, dtype=np.float32)
_PART = 2**15  # pixels coloured at a time: they fit into one core's cache
_SIGN = np.int32(-(2**31))  # the bit of a float that holds its sign


def augment_bytes(images: Tensor, drawn: Augmentation) -> Tensor:
    """Apply an augmentation to uint8 images [N, 3, S, S] on the CPU and return floats. Channels-last is fastest."""
    n, _, size, _ = images.shape
    images = images.contiguous(memory_format=torch.channels_last)
    boxes, flips = whole_pixels(drawn.box, size), drawn.flip.tolist()
    out = np.empty((n, 3, size * size), dtype=np.float32)
    work = _Work(size * size)
    factors = zip(*(v.tolist() for v in (drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue, drawn.grey)))
    for i, (brightness, contrast, saturation, hue, grey) in enumerate(factors):
        cropped = _crop(images[i : i + 1], boxes[i])
        pixels = cropped.transpose(2, 0, 1)[:, :, ::-1] if flips[i] else cropped.transpose(2, 0, 1)
        colours = not _is_grey(cropped, work.third)
        x = work.x if colours else work.x[:1]
        np.copyto(x.reshape(-1, size, size), pixels[: len(x)])
        scale, offset = _contrast(x, _LUMA if colours else _ONE, work.ones, brightness, contrast)
        if not colours:  # saturation and hue change nothing in drawings and old photos
            x *= scale
            np.add(x, offset, out=out[i])
            continue
        for part in work.parts:
            _saturate(x[:, part], work.planes[0], scale, offset, saturation)
            _turn_hue(x[:, part], work.y, work.planes, out[i, :, part], hue)
        if grey:
            out[i] = _LUMA @ out[i]
    return torch.from_numpy(out.reshape(n, 3, size, size))


class _Work:
    """Working arrays, used by one image of a batch after another."""

    def __init__(self, pixels: int) -> None:
        n = -(-pixels // -(-pixels // _PART))  # parts of about the same size
        self.parts = [slice(start, min(start + n, pixels)) for start in range(0, pixels, n)]
        self.third = _every_third(3 * pixels - 1)
        self.ones = np.ones(pixels, dtype=np.float32)
        self.x = np.empty((3, pixels), dtype=np.float32)
        self.y = np.empty((3, n), dtype=np.float32)
        self.planes = np.empty((4, n), dtype=np.float32)


@cache
def _every_third(n: int) -> np.ndarray:
    return np.arange(n) % 3 == 2


def whole_pixels(box: Tensor, size: int) -> list[list[int]]:
    """Round boxes, given as shares of the image, to (top, left, height, width) in pixels inside the image.

    >>> whole_pixels(torch.tensor([[0.0, 0.1, 1.0, 0.9], [0.26, 0.0, 0.74, 0.01]]), 10)
    [[0, 1, 10, 9], [3, 0, 7, 1]]
    """
    extent = (box[:, 2:] * size).round().clamp(1, size)
    corner = (box[:, :2] * size).round().clamp(min=0).minimum(size - extent)
    return torch.cat((corner, extent), dim=1).int().tolist()


def _crop(image: Tensor, box: list[int]) -> np.ndarray:
    """Cut a box out of one image and scale it back to full size: uint8 [S, S, 3]."""
    top, left, height, width = box
    cut = image[:, :, top : top + height, left : left + width]
    return np.ascontiguousarray(
        torch.ops.aten.upsample_bilinear2d(cut, image.shape[2:], False)[0].permute(1, 2, 0).numpy()
    )


def _is_grey(pixels: np.ndarray, third: np.ndarray) -> bool:
    """Tell whether red, green and blue are equal in every pixel of [S, S, 3].

    The code compares every value with the next one in memory and ignores every third comparison, blue with the next
    pixel's red. This reads memory in one sweep and is several times as fast as comparing channels.
    """
    middle = pixels[len(pixels) // 2]
    if not np.array_equal(middle[:, 0], middle[:, 1]):  # one row nearly always settles it
        return False
    values = pixels.reshape(-1)
    return bool(((values[:-1] == values[1:]) | third).all())


def _contrast(
    x: np.ndarray, luma: np.ndarray, ones: np.ndarray, brightness: float, contrast: float
) -> tuple[np.float32, np.float32]:
    """Brighten pixels [C, n] of 0–255 and change their contrast. Return a factor and a summand still to be applied.

    A factor up to 1 keeps pixels in range, so only larger factors need a clamp, here and below. Operations that need no
    clamp are not done here but returned, so that the next step does them together.
    """
    scale = brightness / 255
    if brightness > 1:
        x *= np.float32(scale)
        np.clip(x, 0, 1, out=x)
        scale = 1.0
    mean = float(luma @ (x @ ones)) / len(ones) * scale
    scale, offset = scale * contrast, (1 - contrast) * mean
    if contrast > 1:
        x *= np.float32(scale)
        x += np.float32(offset)
        np.clip(x, 0, 1, out=x)
        scale, offset = 1.0, 0.0
    return np.float32(scale), np.float32(offset)


def _saturate(x: np.ndarray, grey: np.ndarray, scale: np.float32, offset: np.float32, saturation: float) -> None:
    """Scale pixels [3, n], add the offset, and blend with their luma."""
    grey = grey[: x.shape[1]]
    np.dot(_LUMA, x, out=grey)
    grey *= np.float32(scale * (1 - saturation))
    grey += offset
    x *= np.float32(scale * saturation)
    x += grey
    if saturation > 1:
        np.clip(x, 0, 1, out=x)


def _turn_hue(x: np.ndarray, y: np.ndarray, planes: np.ndarray, out: np.ndarray, turn: float) -> None:
    """Rotate the hue of pixels [3, n] without computing it.

    A rotation by thirds of the circle permutes the channels; a rest of at most a sixth remains. Let C = high − low. As
    a function of the hue, a channel is a trapezium: low + clamp(C + low − (sum of the other two) + itself, 0, C). A
    rotation shifts its flanks by rest · C, up or down by the sign of the difference of the other two channels:
    x'_r = clamp(2·r + high + low − (r + g + b) − sign(g − b)·rest·C, low, high), likewise for g (b − r) and b (r − g).
    """
    thirds = round(3 * turn)
    rest = 6 * turn - 2 * thirds  # in sixths of the circle
    red, green, blue = x
    y = y[:, : x.shape[1]]
    low, high, shift, other = planes[:, : x.shape[1]]
    np.minimum(red, green, out=low)
    np.minimum(low, blue, out=low)
    np.maximum(red, green, out=high)
    np.maximum(high, blue, out=high)
    np.subtract(high, low, out=shift)
    shift *= np.float32(rest)
    for channel in range(3):
        np.subtract(x[(channel + 1) % 3], x[(channel + 2) % 3], out=y[channel])
    bits = y.view(np.int32)
    bits &= _SIGN  # sign · shift; np.copysign does the same but does not vectorise
    bits ^= shift.view(np.int32)
    np.add(low, high, out=other)
    other -= red
    other -= green
    other -= blue
    x *= np.float32(2)
    x += other
    x -= y
    np.maximum(x, low, out=x)
    for channel in range(3):
        np.minimum(x[channel], high, out=out[(channel + thirds) % 3])
