"""Images of several domains: where they come from, how they are split, and how they reach a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from itta.data.dataset import DomainDataset
from itta.data.emoji import load_emoji
from itta.data.folder import load_folder
from itta.data.manifest import is_manifest
from itta.data.mnist import load_mnist
from itta.data.published import MNIST_NAMES, PUBLISHED, locate
from itta.errors import InputError


def load_dataset(
    name_or_path: str | Path,
    *,
    image_size: int,
    domains: Sequence[str] | None = None,
    strict: bool = False,
    allow_missing_classes: bool = False,
    root: str | Path | None = None,
    cache: bool = True,
    seed: int = 0,
) -> DomainDataset:
    """Load a data set by its name, or a folder root/domain/class/image or a manifest by its path.

    `root` is where published data sets lie (else ITTA_DATA); `cache` keeps decoded images on disk; `seed` deals the
    images of the MNIST data sets out to their domains.

    >>> tuple(load_dataset("emoji", image_size=32).domains)
    ('twemoji', 'fluent-3d', 'fluent-mono', 'noto-mono')
    """
    if str(name_or_path) == "emoji":  # a folder of this name is ./emoji
        return load_emoji(domains, strict=strict, image_size=image_size)
    path = locate(name_or_path, root)
    if str(name_or_path) in MNIST_NAMES:
        found = load_mnist(str(name_or_path), path, image_size=image_size, domains=domains, seed=seed)
        return replace(found, strict=strict)
    if not path.is_dir() and not is_manifest(path):
        raise InputError(
            f"unknown data set {str(name_or_path)!r}: neither a name (choices: emoji, {', '.join(PUBLISHED)}) nor a "
            "folder that exists. Give the path of a folder with images at root/domain/class/image, or of a manifest."
        )
    folder = load_folder(
        path, image_size=image_size, domains=domains, allow_missing_classes=allow_missing_classes, cache=cache
    )
    return replace(folder, strict=strict)
