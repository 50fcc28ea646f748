"""Read an image file of any common kind as an array of one shape."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import numpy as np
import PIL
from PIL import Image, ImageOps, UnidentifiedImageError, features

from itta.errors import InputError, InputWarning
from itta.files import refuse_pipe

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MAX_PIXELS = 100_000_000
VERSION = 1  # of `read_image`: raise it if a change of the code changes the pixels of a file

# Only these decoders: Pillow has others that start programs (EPS) or are hardly tested with hostile files.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_WHITE = {"F": 1.0, "I": 65535.0, "I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0}
_bomb_limit = Lock()


def decoder_version() -> str:
    """Return a text that differs between versions that may decode a file to other pixels."""
    return f"{VERSION} Pillow {PIL.__version__} jpeg {features.version('jpg')} webp {features.version('webp')}"


def check_image_size(size: int) -> None:
    """Refuse an image size below 1."""
    if size < 1:
        raise InputError(f"image_size must be at least 1 pixel, got {size}.")


def read_image(path: str | Path, size: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Return a file as uint8 [3, size, size]: upright, first frame, on white, without keeping the aspect ratio."""
    path = Path(path)
    refuse_pipe(path)
    try:
        with _open(path) as image:
            _check_size(path, image, max_pixels)
            # If a photo of 12 megapixels becomes 96 pixels wide, the JPEG decoder can skip detail (1/2, 1/4 or 1/8) and
            # is several times as fast. It keeps twice the wanted size, so that the filter below still smooths.
            image.draft(None, (2 * size, 2 * size))
            return np.ascontiguousarray(resize_image(image, size, path).transpose(2, 0, 1))
    except InputError:
        raise
    except Exception as error:  # a broken file can make a decoder raise nearly anything
        raise InputError(f"cannot read {path}: {_reason(path, error)}. Replace the file or remove it.") from error


def resize_image(image: Image.Image, size: int, name: str | Path) -> np.ndarray:
    """Return an image of Pillow as uint8 [size, size, 3], as `read_image` does with that of a file."""
    small = _flatten(_upright(image), name).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(_on_white(small))


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open a file without Pillow's size limit. Pillow's limit only warns, and is global; `_check_size` refuses."""
    with _bomb_limit:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(path, formats=_FORMATS)  # the header only
        finally:
            Image.MAX_IMAGE_PIXELS = limit
    with image:
        yield image


def _check_size(path: Path, image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise InputError(
            f"{path} is {image.width} x {image.height} pixels, more than {max_pixels / 1e6:g} million: scale it down."
        )


def _upright(image: Image.Image) -> Image.Image:
    """Rotate a photo as its EXIF data say. If they cannot be read, do not rotate: the pixels may be fine."""
    image.load()
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _flatten(image: Image.Image, path: str | Path) -> Image.Image:
    """Convert any mode to RGB, or to RGBA if there is transparency."""
    if image.mode in _WHITE:
        return _to_grey(image, path).convert("RGB")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _to_grey(image: Image.Image, path: str | Path) -> Image.Image:
    """Scale grey of more than 8 bits to 8 bits; Pillow would clip it. White is the mode's, or the brightest pixel."""
    values = np.array(image, dtype=np.float32)  # one copy, changed in place: it may be large
    if np.isnan(values).any():
        warnings.warn(
            f"{path} has pixels that are not numbers (NaN): they are read as black", InputWarning, stacklevel=2
        )
    np.nan_to_num(values, copy=False)
    white = max(_WHITE[image.mode], float(values.max()))
    values.clip(0, out=values)
    values *= 255 / white
    values += 0.5
    return Image.fromarray(values.astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if path.is_file() and path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"it is damaged or not an image of a known kind ({', '.join(_FORMATS)})"
    return str(error) or type(error).__name__
