"""Decoded images on disk: a file is decoded and resized once, and every later process maps the result.

A domain has an array of pixels and an index in JSON. The index is written last, so the array it names is complete. The
index holds a key: the decoder's version, the image size, and the path, size and time of change of every file. If the
key changes, the array is made again. Each image has a checksum, which a process checks at its first read.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from filelock import FileLock
from msgspec import Meta

from itta.data.images import decoder_version, read_image
from itta.errors import InputError, InputWarning
from itta.progress import ReportProgress
from itta.schema import conform, read_json

FORMAT = 1
MAX_INDEX = 2**26  # bytes
_CHUNK = 64  # images decoded at a time, and then written
_SPARE = 1.05  # free space that must be there, relative to the size of the cache


@dataclass(frozen=True)
class Index:
    """The content of an index."""

    key: str
    pixels: str
    checksums: tuple[Annotated[int, Meta(ge=0, lt=2**32)] | None, ...]  # of each image; None if it cannot be read


class Damaged(Exception):
    """The bytes on disk are not those that were written."""


def cache_home() -> Path | None:
    """Return the directory of decoded images: ITTA_CACHE or the user's cache directory; None if ITTA_CACHE is "off"."""
    chosen = os.environ.get("ITTA_CACHE")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "itta"


class Mapped:
    """The pixels of a complete cache, uint8 [N, S, S, 3]. All processes that map them share the memory."""

    def __init__(self, pixels: np.ndarray, checksums: Sequence[int | None], paths: Sequence[str]) -> None:
        self._pixels, self._paths = pixels, paths
        self._readable = np.array([c is not None for c in checksums], dtype=bool)
        self._checksums = np.array([c or 0 for c in checksums], dtype=np.int64)
        self._checked = np.zeros(len(checksums), dtype=bool)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of some images. Raise Damaged if one has changed since it was stored."""
        found = np.take(self._pixels, rows, axis=0)
        for i in np.flatnonzero(~self._checked[rows]):
            if not self._readable[rows[i]]:  # the file could not be read then: read it now, or raise the reason
                found[i] = read_image(self._paths[rows[i]], found.shape[1]).transpose(1, 2, 0)
            elif zlib.crc32(found[i]) != self._checksums[rows[i]]:
                raise Damaged(self._paths[rows[i]])
        self._checked[rows] |= self._readable[rows]
        return found

    def check(self) -> None:
        """Raise Damaged if any image has changed since it was stored."""
        for rows in np.array_split(np.flatnonzero(self._readable), len(self._readable) // _CHUNK + 1):
            self.read(rows)


def open_cache(
    origin: str, paths: Sequence[str], size: int, report: ReportProgress, anew: bool = False
) -> Mapped | None:
    """Map the decoded images of a domain. Decode them first if they are missing or stale, or if ``anew`` is set.

    Return None if the disk cannot hold them. ``origin`` names the domain and its data: its cache is replaced when its
    files change. One process makes the cache while others wait.
    """
    home = cache_home()
    if home is None or not paths:
        return None
    folder, name = home / "decoded", _name(origin, size)
    key = _key(paths, size)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_shared(folder)
        found = None if anew else _open(folder, name, key, paths, size)
        if found is None:
            with FileLock(folder / f"{name}.lock"):
                found = _open(folder, name, key, paths, size)  # another process may have made it meanwhile
                if found is None or (anew and _is_damaged(found)):
                    _make(folder, name, key, paths, size, report)
                    found = _open(folder, name, key, paths, size)
        return found
    except (OSError, NotImplementedError) as error:
        warnings.warn(
            f"decoded images cannot be kept in {folder} ({getattr(error, 'strerror', None) or error}), so every run "
            "decodes them again: set ITTA_CACHE to another directory, or turn the cache off with --no-cache.",
            InputWarning,
            stacklevel=2,
        )
        return None


def _name(origin: str, size: int) -> str:
    return f"{hashlib.sha256(os.path.abspath(origin).encode()).hexdigest()[:20]}-{size}"


def _pixels_file(name: str, key: str) -> str:
    return f"{name}-{key[:16]}.npy"


def _refuse_shared(folder: Path) -> None:
    """Refuse a directory in which another user could put other pixels."""
    if not hasattr(os, "getuid"):  # Windows keeps a user's directories apart
        return
    home, own = folder.parent.stat(), folder.stat()
    sticky = home.st_mode & stat.S_ISVTX
    if own.st_uid != os.getuid() or own.st_mode & 0o022 or (home.st_mode & 0o022 and not sticky):
        raise OSError(f"other users may write there; chmod go-w {folder.parent} {folder}")


def _key(paths: Sequence[str], size: int) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, decoder_version(), size])[:-1].encode())
    for path in paths:  # one by one: there may be many
        try:
            found = os.stat(path)
            facts = [os.path.abspath(path), found.st_size, found.st_mtime_ns]
        except OSError:
            facts = [os.path.abspath(path), None, None]
        digest.update(f", {json.dumps(facts)}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def _open(folder: Path, name: str, key: str, paths: Sequence[str], size: int) -> Mapped | None:
    """Map a cache that is complete and up to date."""
    try:
        index = conform(Index, read_json(folder / f"{name}.json", MAX_INDEX))
        if index.key != key or index.pixels != _pixels_file(name, key) or len(index.checksums) != len(paths):
            return None
        pixels = np.load(folder / index.pixels, mmap_mode="r", allow_pickle=False)
        if pixels.shape != (len(paths), size, size, 3) or pixels.dtype != np.uint8:
            return None
        return Mapped(pixels, index.checksums, paths)
    except (OSError, ValueError, EOFError):  # an InputError is a ValueError
        return None


def _is_damaged(found: Mapped) -> bool:
    try:
        found.check()
    except Damaged:
        return True
    return False


def _make(folder: Path, name: str, key: str, paths: Sequence[str], size: int, report: ReportProgress) -> None:
    need = len(paths) * size * size * 3
    if shutil.disk_usage(folder).free < need * _SPARE:
        raise OSError(f"{need / 1e9:.1f} GB are needed, and the disk is nearly full")
    for left_over in folder.glob(f"{name}.*.tmp"):  # from a process that was killed
        left_over.unlink()
    pixels = _pixels_file(name, key)
    partial = folder / f"{name}.{os.getpid()}.tmp"
    try:
        with open(partial, "wb") as file:
            checksums = _write_pixels(file, paths, size, report)
            _finish(file)
        os.replace(partial, folder / pixels)
        with open(partial, "w", encoding="utf-8") as index:
            json.dump({"key": key, "pixels": pixels, "checksums": checksums}, index)
            _finish(index)
        os.replace(partial, folder / f"{name}.json")
    finally:
        partial.unlink(missing_ok=True)
    for old in folder.glob(f"{name}-*.npy"):
        if old.name != pixels:
            with suppress(OSError):  # some systems cannot delete a file that is mapped
                old.unlink()


def _write_pixels(file: IO[bytes], paths: Sequence[str], size: int, report: ReportProgress) -> list[int | None]:
    """Write an array file piece by piece, so that a full disk raises an error instead of a crash."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), size, size, 3)}
    np.lib.format.write_array_header_1_0(file, header)
    checksums: list[int | None] = []
    for pixels in _decode(paths, size):
        data = bytes(size * size * 3) if pixels is None else pixels.tobytes()
        checksums.append(None if pixels is None else zlib.crc32(data))
        file.write(data)
        report("decode", len(checksums), len(paths))
    return checksums


def _decode(paths: Sequence[str], size: int) -> Iterator[np.ndarray | None]:
    """Yield each image as uint8 [S, S, 3], or None if it cannot be read. `Mapped.read` raises the reason later."""

    def decode(path: str) -> np.ndarray | None:
        try:
            return np.ascontiguousarray(read_image(path, size).transpose(1, 2, 0))
        except InputError:
            return None

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), _CHUNK):
            yield from pool.map(decode, paths[start : start + _CHUNK])


def _finish(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
