"""Images in folders: root/domain/class/image to train on, root/class/image or root/image as a target."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import torch

from itta.data.dataset import DomainDataset, Images
from itta.data.images import IMAGE_SUFFIXES, read_image
from itta.errors import InputError, unknown


class FolderImages:
    """Image files, decoded when first read and then kept.

    The array is reserved whole, but the system hands out its pages as they are written, so it takes as much memory as
    has been read.
    """

    groups = None

    def __init__(self, paths: Sequence[Path], labels: Sequence[int] | np.ndarray, image_size: int) -> None:
        self.names = [str(path) for path in paths]
        self.labels = np.asarray(labels, dtype=np.int64)
        self._pixels = _reserve(len(paths), image_size)
        self._decoded = np.zeros(len(paths), dtype=bool)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.names)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return uint8 [B, 3, S, S]."""
        rows = np.asarray(indices, dtype=np.int64)
        with self._lock:
            for row in np.unique(rows[~self._decoded[rows]]):
                self._pixels[row] = read_image(self.names[row], self._pixels.shape[-1])
                self._decoded[row] = True
        return torch.from_numpy(self._pixels[rows])


def load_folder(
    root: str | Path,
    *,
    image_size: int,
    domains: Sequence[str] | None = None,
    allow_missing_classes: bool = False,
) -> DomainDataset:
    """Load root/domain/class/image, all sorted by name as DomainBed does, so that its splits come out the same."""
    root = Path(root)
    found = _subfolders(root)
    if not found:
        raise InputError(f"no domain folders in {root}; expected images at {root}/domain/class/image.")
    for name in domains or ():
        if name not in found:
            raise unknown("domain", name, tuple(found))
    files = {name: _by_class(folder) for name, folder in found.items() if domains is None or name in domains}
    classes = tuple(sorted({label for by_class in files.values() for label in by_class}))
    for name, by_class in files.items():
        _check_domain(found[name], by_class, classes, allow_missing_classes)
    return DomainDataset(
        name=root.resolve().name,
        classes=classes,
        domains={name: _labelled(by_class, classes, image_size) for name, by_class in files.items()},
        image_size=image_size,
    )


def load_target(root: str | Path, classes: Sequence[str], *, image_size: int) -> Images:
    """Load a target: root/class/image with labels, or root/image (or one file) without, every label -1."""
    root = Path(root)
    if root.is_file() or not _subfolders(root):
        paths = list_images([root])
        return FolderImages(paths, [-1] * len(paths), image_size)
    by_class = _by_class(root)
    for name in by_class:
        if name not in classes:
            error = unknown(f"class folder in {root}:", name, tuple(classes))
            raise InputError(f"{error} Images without labels belong straight into {root}.")
    if any(_is_image(path) for path in root.iterdir()):
        raise InputError(f"{root} holds both images and class folders; move the images into folders or elsewhere.")
    if not any(by_class.values()):
        raise InputError(f"no images in {root}; expected {root}/class/image with {_suffixes()}.")
    return _labelled(by_class, classes, image_size)


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return image files and those below folders, each once, in the order given; a folder counts 2 before 10."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(_walk(path), key=_natural)
            if not inside:
                raise InputError(f"no images in {path}; expected files with {_suffixes()}.")
            found += inside
        elif not path.exists():
            raise InputError(f"there is no file or folder {path}; check the path.")
        elif path.suffix.lower() not in IMAGE_SUFFIXES:
            raise InputError(f"{path} is not an image file; expected {_suffixes()}, or a folder of such files.")
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _reserve(n: int, size: int) -> np.ndarray:
    if size < 1:
        raise InputError(f"image_size is a number of pixels, 1 or more; got {size}.")
    try:
        return np.empty((n, 3, size, size), dtype=np.uint8)
    except MemoryError as error:
        need = n * 3 * size * size / 1e9
        raise InputError(
            f"{n} images of {size} x {size} pixels need {need:.0f} GB of memory; take fewer domains or a smaller size."
        ) from error


def _labelled(by_class: dict[str, list[Path]], classes: Sequence[str], image_size: int) -> FolderImages:
    paths = [path for paths in by_class.values() for path in paths]
    labels = [classes.index(name) for name, paths in by_class.items() for _ in paths]
    return FolderImages(paths, labels, image_size)


def _check_domain(folder: Path, by_class: dict[str, list[Path]], classes: Sequence[str], allow_missing: bool) -> None:
    if not any(by_class.values()):
        raise InputError(
            f"no images in domain {folder.name!r}; expected {folder}/class/image with {_suffixes()}. "
            "Remove the folder or name the domains to use."
        )
    missing = [name for name in classes if not by_class.get(name)]
    if missing and not allow_missing:
        raise InputError(
            f"domain {folder.name!r} has no images of class {', '.join(map(repr, missing))}: nothing in "
            f"{folder / missing[0]}. Add some, or go on without: allow_missing_classes=True, --allow-missing-classes."
        )


def _subfolders(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; check the path.")
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


def _by_class(folder: Path) -> dict[str, list[Path]]:
    return {name: sorted(_walk(path)) for name, path in _subfolders(folder).items()}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for path in (Path(parent, name) for name in files) if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _natural(path: Path) -> tuple[list[str | int], str]:
    pieces = re.split(r"(\d+)", str(path).casefold())
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], str(path)


def _suffixes() -> str:
    return ", ".join(IMAGE_SUFFIXES)
