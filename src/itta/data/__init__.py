"""Images of several domains: where they come from, how they are split, and how they reach a model.

The table `DATASETS` names the data sets that a user may give by name. A new one is one entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from itta.data.dataset import DomainDataset
from itta.data.emoji import STYLES, load_emoji
from itta.data.fingerprint import fingerprint_files
from itta.data.folder import load_folder
from itta.data.manifest import is_manifest
from itta.data.mnist import load_mnist
from itta.data.published import MNIST_NAMES, PUBLISHED, locate
from itta.errors import InputError
from itta.settings import DataAccess, TrainSettings
from itta.trial import Trial


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """How a data set is to be loaded."""

    image_size: int
    strict: bool = False  # hold out identities as well as images
    allow_missing_classes: bool = False
    seed: int = 0  # deals the images of the MNIST data sets out to their domains
    access: DataAccess = DataAccess()


@dataclass(frozen=True)
class NamedDataset:
    """A data set that a user may give by name."""

    about: str
    domains: tuple[str, ...]
    load: Callable[[DataRequest], DomainDataset]
    in_folders: bool = True  # its images lie at root/domain/class/image


def from_folder(path: Path, request: DataRequest) -> DomainDataset:
    """Load a folder root/domain/class/image, or a manifest."""
    dataset = load_folder(
        path,
        image_size=request.image_size,
        allow_missing_classes=request.allow_missing_classes,
        cache=request.access.cache,
    )
    return replace(dataset, strict=request.strict)


def published(name: str) -> NamedDataset:
    """Make the entry of a published data set, found below the data root."""
    facts = PUBLISHED[name]

    def load(request: DataRequest) -> DomainDataset:
        folder = locate(name, request.access.data_root)
        if name in MNIST_NAMES:
            dealt = load_mnist(name, folder, image_size=request.image_size, seed=request.seed)
            return replace(dealt, strict=request.strict)
        return from_folder(folder, request)

    return NamedDataset(f"{facts.about} (itta data get {name})", facts.domains, load, name not in MNIST_NAMES)


DATASETS: dict[str, NamedDataset] = {
    "emoji": NamedDataset(
        f"EmojiStyles, embedded: 12 classes drawn in the styles {', '.join(STYLES)}",
        STYLES,
        lambda request: load_emoji(strict=request.strict, image_size=request.image_size),
        in_folders=False,
    ),
    **{name: published(name) for name in PUBLISHED},
}


def load_dataset(
    data: str | Path,
    *,
    image_size: int,
    strict: bool = False,
    allow_missing_classes: bool = False,
    seed: int = 0,
    access: DataAccess = DataAccess(),
) -> DomainDataset:
    """Load a data set by its name, or a folder root/domain/class/image or a manifest by its path.

    A folder or manifest also gets a fingerprint, which identifies the data however their path is spelled.

    >>> tuple(load_dataset("emoji", image_size=32).domains)
    ('twemoji', 'fluent-3d', 'fluent-mono', 'noto-mono')
    """
    request = DataRequest(
        image_size=image_size,
        strict=strict,
        allow_missing_classes=allow_missing_classes,
        seed=seed,
        access=access,
    )
    if is_name(data, access):
        return DATASETS[str(data)].load(request)
    path = Path(data)
    if not path.is_dir() and not is_manifest(path):
        raise InputError(
            f"unknown data set {str(data)!r}: it is neither a name (choices: {', '.join(DATASETS)}) nor a folder that "
            "exists. Give the path of a folder with images at root/domain/class/image, or of a manifest."
        )
    dataset = from_folder(path, request)
    return replace(dataset, path=path.resolve(), fingerprint=fingerprint_files(path, dataset))


def is_name(data: str | Path, access: DataAccess) -> bool:
    """Tell whether a word names a data set of the table; a published one found right here is a folder instead."""
    here = str(data) in PUBLISHED and access.data_root is None and Path(data).exists()
    return str(data) in DATASETS and not here


def open_data(trial: Trial, access: DataAccess = DataAccess(), data: str = "") -> DomainDataset:
    """Open the data of a trial; ``data`` says where its images are now, if they have moved."""
    return open_dataset(data or trial.dataset, trial, access, trial.trial_seed)


def open_dataset(data: str, settings: TrainSettings, access: DataAccess = DataAccess(), seed: int = 0) -> DomainDataset:
    """Open data as the settings of a training ask for them."""
    return load_dataset(
        data,
        image_size=settings.image_size,
        strict=settings.strict,
        allow_missing_classes=settings.allow_missing_classes,
        seed=seed,
        access=access,
    )


def check_unchanged(trial: Trial, dataset: DomainDataset) -> None:
    """Refuse images that are not those with which a trial began."""
    if trial.fingerprint and trial.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the images in {dataset.path or dataset.name} are not those of this trial: files were added, removed or "
            "changed since it was set up. Put the images back, or train again into another --out."
        )
