"""Pixels of image files: from the cache of decoded images, or decoded when they are read."""

import os
from collections.abc import Iterable, Sequence
from threading import Condition, Lock

import numpy as np
import torch

from itta.data.cache import Damaged, Mapped, open_cache
from itta.data.images import check_image_size, read_image
from itta.data.path_list import PathList
from itta.errors import InputError
from itta.progress import ReportProgress, silent

# Most bytes of decoded pixels that are kept of images that are read once:
ON_DISK = 2**33
IN_MEMORY = 2**28


class InMemory:
    """The pixels of image files, uint8 [N, S, S, 3]. Each file is decoded at its first read and then kept.

    The array is reserved as a whole, but the system gives it memory only as pages are written. So it takes the memory
    of the images read so far.
    """

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self._paths, self._pixels = paths, _reserve(len(paths), size)
        self._decoded, self._begun = np.zeros(len(paths), dtype=bool), np.zeros(len(paths), dtype=bool)
        self._changed = Condition()

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of some images."""
        with self._changed:
            mine = np.unique(rows[~self._decoded[rows] & ~self._begun[rows]])
            self._begun[mine] = True
        try:
            for row in mine:  # without the lock: threads decode side by side
                self._pixels[row] = read_image(self._paths[row], self._pixels.shape[1]).transpose(1, 2, 0)
                self._decoded[row] = True
        finally:
            with self._changed:
                self._begun[mine] = False  # a file that cannot be read is tried again at its next read
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: not self._begun[rows].any())
        return self._pixels[rows] if self._decoded[rows].all() else self.read(rows)


class Unkept:
    """The pixels of image files, which are decoded at each read. Nothing is kept."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self._paths, self._size = paths, size

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return some images, uint8 [B, S, S, 3]."""
        pixels = np.empty((len(rows), self._size, self._size, 3), dtype=np.uint8)
        for place, row in enumerate(rows):
            pixels[place] = read_image(self._paths[row], self._size).transpose(1, 2, 0)
        return pixels


class FolderImages:
    """Image files of one domain. With `origin`, a name for the domain, they come from the cache of decoded images.

    Images that are read only ``once`` are decoded at each read, and not kept, if there are very many.
    """

    groups = None

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Sequence[int] | np.ndarray,
        image_size: int,
        origin: str | None = None,
        once: bool = False,
    ) -> None:
        check_image_size(image_size)
        self.paths = paths if isinstance(paths, PathList) else PathList(paths)
        self.names = self.paths.readable()
        self.labels = np.asarray(labels, dtype=np.int64)
        self._size, self._origin = image_size, origin
        self._bytes = len(self.paths) * 3 * image_size**2 if once else 0
        cached = origin and self._bytes <= ON_DISK
        self._store: InMemory | Mapped | Unkept | None = None if cached else self._uncached()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.names)

    def prepare(self, report: ReportProgress = silent) -> None:
        """Decode all images into the cache, unless they are there. Without this call the first read does it."""
        with self._lock:
            if self._store is None:
                self._open(report)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return uint8 [B, 3, S, S], in channels-last order."""
        rows = np.asarray(indices, dtype=np.int64)
        self.prepare()
        assert self._store is not None
        try:
            pixels = self._store.read(rows)
        except Damaged:
            with self._lock:
                self._open(silent, anew=True)
            try:
                pixels = self._store.read(rows)
            except Damaged:  # damaged again: decode in memory
                self._store = self._uncached()
                pixels = self._store.read(rows)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)

    def _open(self, report: ReportProgress, anew: bool = False) -> None:
        assert self._origin is not None
        mapped = open_cache(self._origin, self.paths, self._size, report, anew)
        self._store = mapped or self._uncached()

    def _uncached(self) -> InMemory | Unkept:
        kind = InMemory if self._bytes <= IN_MEMORY else Unkept
        return kind(self.paths, self._size)


def _reserve(n: int, size: int) -> np.ndarray:
    try:
        return np.empty((n, size, size, 3), dtype=np.uint8)
    except MemoryError as error:
        need = n * 3 * size * size / 1e9
        raise InputError(
            f"{n} images of {size} x {size} pixels need {need:.0f} GB of memory: use fewer domains or a smaller size."
        ) from error
