"""Images of several domains: where they come from, how they are split, and how they reach a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from itta.data.dataset import DomainDataset
from itta.data.emoji import load_emoji
from itta.data.folder import load_folder
from itta.errors import InputError


def load_dataset(
    name_or_path: str | Path,
    *,
    image_size: int,
    domains: Sequence[str] | None = None,
    strict: bool = False,
    allow_missing_classes: bool = False,
) -> DomainDataset:
    """Load the embedded data set by its name, or a folder root/domain/class/image by its path.

    >>> tuple(load_dataset("emoji", image_size=32).domains)
    ('twemoji', 'fluent-3d', 'fluent-mono', 'noto-mono')
    """
    if str(name_or_path) == "emoji":  # a folder of this name is ./emoji
        return load_emoji(domains, strict=strict, image_size=image_size)
    if Path(name_or_path).is_dir():
        folder = load_folder(
            name_or_path, image_size=image_size, domains=domains, allow_missing_classes=allow_missing_classes
        )
        return replace(folder, strict=strict)
    raise InputError(
        f"unknown data set {str(name_or_path)!r}: neither a name (choices: emoji) nor a folder that exists. "
        "Give the path of a folder with images at root/domain/class/image."
    )
