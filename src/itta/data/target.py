"""A target: the images on which a trained model is run, and the order in which they arrive."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from itta.data import DATASETS, is_name, load_dataset
from itta.data.dataset import Images, JoinedImages, target_indices
from itta.data.folder import find_images, load_target
from itta.data.folder_images import FolderImages
from itta.data.loaders import stream
from itta.data.path_list import PathList
from itta.data.published import locate
from itta.data.streams import draw_order
from itta.errors import InputError, unknown
from itta.settings import DataAccess, StreamSettings
from itta.trial import Trial


@dataclass(frozen=True)
class Expected:
    """The classes, the image size and the trial of a trained model, for opening its target."""

    classes: tuple[str, ...]
    image_size: int
    trial: Trial | None = None  # names the default target, and the seed that dealt out its data


@dataclass(frozen=True)
class Target:
    """Images of one domain or of several."""

    name: str
    images: Images
    indices: np.ndarray  # the images to predict; if ``ordered``, in the order in which they arrive
    labelled: bool
    ordered: bool = False

    def of_domains(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Map each domain to a mask [N]: which of the given images are its own."""
        if not isinstance(self.images, JoinedImages):
            return {self.name: np.ones(len(indices), dtype=bool)}
        bounds = zip(self.images.parts, self.images.starts, self.images.starts[1:])
        return {name: (indices >= low) & (indices < high) for name, low, high in bounds}

    def batches(self, batch_size: int, seed: int, least: int = 1) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        """Yield indices, images and labels; ``seed`` orders the images unless the target has an order."""
        return stream(self.images, self.indices, batch_size, None if self.ordered else seed, least)


def open_stream(data: str, expected: Expected, settings: StreamSettings, access: DataAccess = DataAccess()) -> Target:
    """Open the images of one or several domains, in the order in which they are to arrive."""
    targets = [open_target(data, expected, name, access) for name in settings.domain or (None,)]
    if len(targets) == 1 and settings.order == "iid":
        return targets[0]  # put in order as it is read
    labelled = all(t.labelled for t in targets)
    if not labelled and settings.order != "iid":
        raise InputError(f"{data} has no labels, so its images cannot arrive by class: leave --order at iid.")
    images = targets[0].images if len(targets) == 1 else JoinedImages({t.name: t.images for t in targets})
    labels = {t.name: t.images.labels[t.indices] for t in targets}
    order = draw_order(labels, settings.order, settings.domains, settings.seed, settings.concentration)
    starts = images.starts if isinstance(images, JoinedImages) else np.zeros(1, dtype=np.int64)
    indices = np.array([starts[d] + targets[d].indices[i] for d, i in zip(order.domain, order.index)], dtype=np.int64)
    return Target(" + ".join(t.name for t in targets), images, indices, labelled, ordered=True)


def open_target(data: str, expected: Expected, domain: str | None = None, access: DataAccess = DataAccess()) -> Target:
    """Open one domain: of a data set known by name, of a folder root/domain/class/image, or of a manifest.

    Without a domain, the folder itself is the target: root/class/image, or root/image without labels.
    """
    if is_name(data, access) and not DATASETS[data].in_folders:
        return open_named(data, expected, domain, access)
    root = locate(data, access.data_root)
    if domain and root.is_dir() and not (root / domain).is_dir():
        raise unknown("domain", domain, sorted(f.name for f in root.iterdir() if f.is_dir()))
    images = load_target(root, expected.classes, image_size=expected.image_size, domain=domain, cache=access.cache)
    return Target(domain or root.resolve().stem, images, np.arange(len(images)), bool((images.labels >= 0).all()))


def open_named(data: str, expected: Expected, domain: str | None, access: DataAccess) -> Target:
    """Open a domain of a data set that lies in no folders, dealt out as the model's trial dealt it."""
    trial = expected.trial
    if trial is None:
        raise InputError(f"the model does not say which trial made it, so the images of {data} cannot be dealt out.")
    dataset = load_dataset(
        data, image_size=expected.image_size, strict=trial.strict, seed=trial.trial_seed, access=access
    )
    if dataset.classes != expected.classes:
        known = ", ".join(expected.classes)
        raise InputError(f"the model knows the classes {known}, and the {data} data have {', '.join(dataset.classes)}.")
    name = domain or next(iter(trial.test_domains), None)
    if name is None:
        raise InputError(f"name the target with --domain. Choices: {', '.join(dataset.domains)}.")
    images = dataset.domain(name)
    return Target(name, images, target_indices(dataset, name, trial.trial_seed), True)


def open_images(
    data: Sequence[str], expected: Expected, domain: str | None = None, access: DataAccess = DataAccess()
) -> Target:
    """Open a target, or several image files and folders of images without labels."""
    if not data:
        raise InputError("no images: name a data set, a folder or image files after the model.")
    if len(data) == 1:
        return open_target(data[0], expected, domain, access)
    if domain is not None:
        raise InputError(f"--domain {domain} goes with one data set, and {len(data)} were named.")
    files = PathList(find_images(data))
    images = FolderImages(files, np.full(len(files), -1), expected.image_size, once=True)
    return Target(f"{len(files)} images", images, np.arange(len(files)), False)
