"""The images of a data set under the class numbers of a model: the same labels, counted in another order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from itta.data.dataset import DomainDataset, Images, Prepared
from itta.errors import InputError
from itta.progress import ReportProgress


@dataclass(frozen=True)
class RenumberedImages:
    """The images of one domain with other class numbers."""

    images: Images
    numbers: np.ndarray  # class number of the images -> class number of the model

    @property
    def labels(self) -> np.ndarray:
        return self.numbers[self.images.labels]

    @property
    def names(self) -> Sequence[str]:
        return self.images.names

    @property
    def groups(self) -> Sequence[str] | None:
        return self.images.groups

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self, report: ReportProgress) -> None:
        if isinstance(self.images, Prepared):
            self.images.prepare(report)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        return self.images.read(indices)


def in_class_order(dataset: DomainDataset, classes: tuple[str, ...]) -> DomainDataset:
    """Return the data set with these classes, in this order; it may lack some of them, and must have no others."""
    if dataset.classes == classes:
        return dataset
    strange = [name for name in dataset.classes if name not in classes]
    if strange:
        raise InputError(
            f"the data have the class {strange[0]!r}, and the model knows {', '.join(classes)}: name the model's "
            "classes in the order of its logits."
        )
    numbers = np.array([classes.index(name) for name in dataset.classes], dtype=np.int64)
    domains = {name: RenumberedImages(images, numbers) for name, images in dataset.domains.items()}
    return replace(dataset, classes=classes, domains=domains)
