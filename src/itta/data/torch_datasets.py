"""Torch datasets as domains: each item is an image and its class number, or an image alone for a target."""

import hashlib
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itta.data.dataset import DomainDataset
from itta.data.images import check_image_size, resize_image
from itta.errors import InputError

LABELS = ("targets", "labels")  # attributes that name the class of every item


class DatasetImages:
    """The items of a torch dataset. Each is read once and kept, as bytes of the wanted size."""

    groups = None

    def __init__(self, items: Any, image_size: int, name: str = "dataset", labelled: bool = True) -> None:
        check_image_size(image_size)
        if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
            raise InputError(f"{name}: expected a torch Dataset with a length, got {type(items).__name__}.")
        self._items, self._name, self._lock = items, name, Lock()
        self._pixels = np.empty((len(items), image_size, image_size, 3), dtype=np.uint8)
        self._read = np.zeros(len(items), dtype=bool)
        self.names = [f"{name}/{i}" for i in range(len(items))]
        self.labels = self._find_labels() if labelled else np.full(len(items), -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def _find_labels(self) -> np.ndarray:
        """Return the class of every item; if the dataset does not list them, all items are read now."""
        listed = next((getattr(self._items, name) for name in LABELS if hasattr(self._items, name)), None)
        if listed is None:
            listed = [self._take(row)[1] for row in range(len(self))]
        found = np.array([class_number(y, self._name) for y in listed], dtype=np.int64)
        if len(found) != len(self):
            raise InputError(f"{self._name} has {len(self)} items and lists {len(found)} labels: give one per item.")
        return found

    def _take(self, row: int) -> tuple[Any, Any]:
        """Read an item, keep its pixels, and return it as image and label; None stands for a label that it lacks."""
        item = self._items[row]
        image, label = item[:2] if isinstance(item, (tuple, list)) and len(item) > 1 else (item, None)
        image = image[0] if isinstance(image, (tuple, list)) else image
        self._pixels[row] = to_pixels(image, self._pixels.shape[1], self.names[row])
        self._read[row] = True
        return image, label

    def read(self, indices: Sequence[int] | np.ndarray) -> Tensor:
        """Return uint8 [B, 3, S, S], in channels-last order."""
        rows = np.asarray(indices, dtype=np.int64)
        with self._lock:
            for row in np.unique(rows[~self._read[rows]]):
                self._take(int(row))
        return torch.from_numpy(self._pixels[rows]).permute(0, 3, 1, 2)


def class_number(label: Any, name: str) -> int:
    value = label.detach().cpu().numpy() if isinstance(label, Tensor) else label
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise InputError(f"{name}: expected items (image, class number), got the label {label!r:.60}.")


def to_pixels(image: Any, size: int, name: str) -> np.ndarray:
    """Turn an image of Pillow, a tensor [C, H, W] or an array [H, W, C] into bytes [size, size, 3].

    Floats are in [0, 1], and are rounded to the nearest byte.

    >>> to_pixels(torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1), 1, "example").tolist()
    [[[0, 128, 255]]]
    """
    if isinstance(image, Tensor):
        image = image.detach().cpu().numpy()
        image = image.transpose(1, 2, 0) if image.ndim == 3 else image
    if isinstance(image, np.ndarray):
        image = as_picture(image, name)
    if not isinstance(image, Image.Image):
        raise InputError(
            f"{name}: expected an image of Pillow, a tensor [3, H, W] or an array [H, W, 3], got "
            f"{type(image).__name__}: leave out transforms that give something else."
        )
    return resize_image(image, size, name)


def as_picture(values: np.ndarray, name: str) -> Image.Image:
    if np.issubdtype(values.dtype, np.floating):
        if not (np.isfinite(values).all() and values.min(initial=0) >= 0 and values.max(initial=0) <= 1):
            raise InputError(
                f"{name}: expected float images in [0, 1], got values from {values.min():g} to {values.max():g}: leave "
                "out the normalisation, which belongs to the network."
            )
        values = np.round(values * 255).astype(np.uint8)
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or channels not in (1, 3):
        raise InputError(f"{name}: expected an image with 3 channels, got {values.dtype} of shape {values.shape}.")
    return Image.fromarray(np.ascontiguousarray(values[..., 0] if values.ndim == 3 and channels == 1 else values))


def from_torch(datasets: Mapping[str, Any], image_size: int, classes: Sequence[str] = ()) -> DomainDataset:
    """Make a data set of torch datasets by domain, in the order of the domains' names.

    Class names are those given, or the attribute ``classes`` of the datasets, or numbers.
    """
    if not datasets or not all(isinstance(name, str) for name in datasets):
        raise InputError("expected a dict from names of domains to torch datasets, such as {'site-1': dataset}.")
    domains = {name: DatasetImages(datasets[name], image_size, name) for name in sorted(datasets)}
    named = {tuple(map(str, d.classes)) for d in datasets.values() if hasattr(d, "classes")}
    if len(named) > 1 and not classes:
        raise InputError("the datasets name different classes: give them the same ones, in the same order.")
    most = max(int(images.labels.max(initial=0)) for images in domains.values())
    numbers = tuple(str(i) for i in range(most + 1))
    found = tuple(classes) or next(iter(named), numbers)
    digest = hashlib.sha256()
    for name, images in domains.items():
        digest.update(f"{name}\0{len(images)}\0".encode() + images.labels.tobytes())
    return DomainDataset("datasets", found, domains, image_size, fingerprint=digest.hexdigest()[:20])
