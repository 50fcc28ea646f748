"""Suspicions about data that stop nothing: one domain only, and one image in two classes."""

import filecmp
import hashlib
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from itta.errors import InputWarning

COMPARED = 2**16  # bytes at the beginning of a file; files that agree so far are compared to their end
MOST_COMPARED = 2_000  # files of which the beginning is read
Files = Mapping[str, Mapping[str, Sequence[Path]]]  # domain -> class -> files


def warn_about(root: Path, files: Files) -> None:
    """Warn of suspicious data, one line each."""
    for suspicion in suspicions(root, files):
        warnings.warn(suspicion, InputWarning, stacklevel=3)


def suspicions(root: Path, files: Files) -> list[str]:
    """Say what is suspicious about data."""
    found = []
    if len(files) == 1:
        found.append(
            f"{root} has one domain only, {next(iter(files))!r}: a model trained on it cannot be measured on another. "
            f"Expected {root}/domain/class/image with several domains."
        )
    twice = list(in_two_classes(files))
    if twice:
        first, second = twice[0]
        more = f", and {len(twice) - 1} more" if len(twice) > 1 else ""
        found.append(f"one image is in two classes: {first} and {second}{more}. Delete the wrong one.")
    return found


def in_two_classes(files: Files) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of files with the same content in two classes.

    Only files of the same size are read: their beginning, and the rest where the beginnings agree.
    """
    by_size: dict[int, list[tuple[str, Path]]] = defaultdict(list)
    for by_class in files.values():
        for label, paths in by_class.items():
            for path in paths:
                by_size[os.stat(path).st_size].append((label, path))
    left = MOST_COMPARED
    for same_size in by_size.values():
        if len({label for label, _ in same_size}) < 2 or len(same_size) > left:
            continue
        left -= len(same_size)
        seen: dict[bytes, tuple[str, Path]] = {}
        for label, path in same_size:
            other = seen.setdefault(beginning(path), (label, path))
            if other[0] != label and filecmp.cmp(other[1], path, shallow=False):
                yield other[1], path


def beginning(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(COMPARED)).digest()
