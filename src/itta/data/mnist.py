"""RotatedMNIST and ColoredMNIST, made from MNIST's four files as in DomainBed.

All 70,000 images are shuffled and dealt out to the domains in turn. DomainBed shuffles by the seed of the run. Here the
caller gives the seed, and a trial gives its own, so that all methods of a trial see the same images. Two things differ:
images have three channels (DomainBed's have one if rotated and two if coloured; our third is black), and their size may
differ from 28 pixels.
"""

import gzip
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from PIL import Image

from itta.data.dataset import DomainDataset
from itta.data.images import check_image_size
from itta.data.published import PUBLISHED
from itta.errors import InputError, unknown

RAW = "raw"  # the folder of the four files, as in torchvision
SIDE = 28
MAX_VALUES = 2**28  # of an idx file; MNIST has 47 million
LABEL_NOISE = 0.25
COLOUR_NOISE = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}  # share of images with a colour that disagrees with the label


class MnistImages:
    """The images of one domain. ``draw`` makes their pixels, uint8 [N, S, S, C], at the first read."""

    groups = None

    def __init__(self, labels: np.ndarray, order: np.ndarray, draw: Callable[[], np.ndarray]) -> None:
        self.labels = labels.astype(np.int64)
        self.names = [f"mnist-{i:05d}" for i in order]
        self._draw, self._lock = draw, Lock()
        self._pixels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.names)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return uint8 [B, 3, S, S]."""
        with self._lock:
            if self._pixels is None:
                self._pixels = self._draw()
        found = self._pixels[np.asarray(indices, dtype=np.int64)]
        return torch.from_numpy(found.repeat(3 // found.shape[-1], axis=-1)).permute(0, 3, 1, 2)


def load_mnist(
    name: str, folder: str | Path, *, image_size: int, domains: Sequence[str] | None = None, seed: int = 0
) -> DomainDataset:
    """Load RotatedMNIST or ColoredMNIST from a folder with raw/*-ubyte.gz.

    With the seed of a run of DomainBed, domains, labels and colours are those of that run.
    """
    check_image_size(image_size)
    facts = PUBLISHED[name]
    for domain in domains or ():
        if domain not in facts.domains:
            raise unknown("domain", domain, facts.domains)
    images, digits = read_mnist(Path(folder))
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(images), generator=generator).numpy()
    found: dict[str, MnistImages] = {}
    for i, domain in enumerate(facts.domains):
        order = shuffled[i :: len(facts.domains)]
        make = _rotated if name == "RotatedMNIST" else _coloured
        # all domains share the generator, so each is made, also those that are not wanted
        found[domain] = make(images, digits, order, domain, image_size, generator)
    chosen = facts.domains if domains is None else domains
    return DomainDataset(name, facts.classes, {domain: found[domain] for domain in chosen}, image_size)


def _rotated(
    images: np.ndarray, digits: np.ndarray, order: np.ndarray, domain: str, size: int, generator: torch.Generator
) -> MnistImages:
    def draw() -> np.ndarray:
        turned = [Image.fromarray(x).rotate(int(domain), Image.Resampling.BILINEAR, fillcolor=0) for x in images[order]]
        return _sized(turned, size)[..., None]

    return MnistImages(digits[order], order, draw)


def _coloured(
    images: np.ndarray, digits: np.ndarray, order: np.ndarray, domain: str, size: int, generator: torch.Generator
) -> MnistImages:
    """Label each digit as below five or not, a quarter of them wrong, and colour it by its label, some wrongly."""

    def chance(p: float) -> np.ndarray:
        return (torch.rand(len(order), generator=generator) < p).numpy()

    labels = (digits[order] < 5) ^ chance(LABEL_NOISE)
    green = labels ^ chance(COLOUR_NOISE[domain])

    def draw() -> np.ndarray:
        grey = _sized([Image.fromarray(x) for x in images[order]], size)
        pixels = np.zeros((*grey.shape, 3), dtype=np.uint8)
        pixels[np.arange(len(grey)), :, :, green.astype(int)] = grey
        return pixels

    return MnistImages(labels, order, draw)


def _sized(images: Sequence[Image.Image], size: int) -> np.ndarray:
    if size != SIDE:
        images = [x.resize((size, size), Image.Resampling.BILINEAR) for x in images]
    return np.stack([np.asarray(x) for x in images])


def read_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return all images, uint8 [N, 28, 28], and their digits: first the training part, then the test part."""
    images = [read_idx(_idx_file(folder, f"{part}-images-idx3-ubyte"), 3) for part in ("train", "t10k")]
    digits = [read_idx(_idx_file(folder, f"{part}-labels-idx1-ubyte"), 1) for part in ("train", "t10k")]
    for x, y in zip(images, digits):
        if len(x) != len(y):
            raise InputError(
                f"{folder / RAW}: {len(x)} images but {len(y)} labels in one part: download the files again."
            )
    return np.concatenate(images), np.concatenate(digits)


def _idx_file(folder: Path, name: str) -> Path:
    for path in (folder / RAW / f"{name}.gz", folder / RAW / name):
        if path.is_file():
            return path
    raise InputError(
        f"there is no {folder / RAW / name}.gz: download it with itta data get RotatedMNIST --root {folder.parent}."
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes, compressed or not: 0, 0, the type 8, the number of axes, their lengths, the values."""
    start = 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            head = file.read(start)
            shape = tuple(int.from_bytes(head[i : i + 4], "big") for i in range(4, start, 4))
            whole = head[:4] == bytes((0, 0, 8, dimensions)) and math.prod(shape) <= MAX_VALUES
            data = file.read(math.prod(shape) + 1) if whole else b""
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path} ({error}): delete it and download it again.") from error
    if not whole or len(data) != math.prod(shape):
        raise InputError(f"{path} is not an idx file of bytes with {dimensions} axes: delete it and download it again.")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
