"""A digest of the images in a folder or a manifest: the identity of data that have no name of their own."""

import hashlib
import os
from pathlib import Path

from itta.data.dataset import DomainDataset


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
