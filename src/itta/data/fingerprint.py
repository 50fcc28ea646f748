"""A digest of the images in a folder or a manifest: the identity of data that have no name of their own.

A published data set without a published checksum gets a contents list when it is unpacked: the number of its files, and
a digest of their names and sizes. A later check finds files that were lost, added or cut short since.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from itta.data.dataset import DomainDataset
from itta.files import replace_text, walk_files
from itta.schema import Count, conform, damaged, read_json


@dataclass(frozen=True)
class Contents:
    """The files of a folder in two values."""

    files: Count
    digest: str  # of their names and sizes


def list_contents(folder: Path) -> Contents:
    """Count the files below a folder, and digest their names and sizes."""
    lines = sorted(
        os.fsencode(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\n") for path in walk_files(folder)
    )
    return Contents(len(lines), hashlib.sha256(b"".join(lines)).hexdigest()[:20])


def write_contents(folder: Path) -> Contents:
    """Keep the contents of a folder in a hidden file beside it."""
    contents = list_contents(folder)
    replace_text(contents_file(folder), json.dumps(asdict(contents)) + "\n")
    return contents


def read_contents(folder: Path) -> Contents | None:
    """Read the contents that a folder had when it was unpacked; None if there is no such list."""
    path = contents_file(folder)
    if not path.is_file():
        return None
    with damaged(path, "delete it"):
        return conform(Contents, read_json(path))


def contents_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.contents.json"


def fingerprint_files(root: Path, dataset: DomainDataset) -> str:
    """Digest domain, class, path below the root and size of every image file.

    A copy of the folder has the same digest, wherever it lies and however its path is spelled. Pixels are not read.
    """
    base = os.path.abspath(root if root.is_dir() else root.parent)
    digest = hashlib.sha256()
    for domain, images in dataset.domains.items():
        for name, label in zip(getattr(images, "paths", images.names), images.labels):
            where = os.path.relpath(os.path.abspath(name), base)
            line = (domain, dataset.classes[label], Path(where).as_posix(), os.stat(name).st_size)
            digest.update(os.fsencode("\0".join(map(str, line)) + "\n"))
    return digest.hexdigest()[:20]
