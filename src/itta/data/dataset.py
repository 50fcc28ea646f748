"""A data set of named domains, and its cut into what is trained on and what is held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from itta.errors import InputError, unknown
from itta.progress import ReportProgress, named
from itta.seeds import derive_seed

Batch = tuple[torch.Tensor, torch.Tensor]  # float32 images in [0, 1] [B, 3, S, S], int64 labels [B]


class Images(Protocol):
    """The images of one domain, read by index."""

    @property
    def labels(self) -> np.ndarray:
        """Return the class index of each image, int64 [N]; -1 where an unlabelled target has none."""

    @property
    def names(self) -> Sequence[str]:
        """Return what to call each image, a path or an id, unique within the domain."""

    @property
    def groups(self) -> Sequence[str] | None:
        """Return the identity that each image shows, the same in every domain, or None if it is not known."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return uint8 [B, 3, S, S], decoding each image at most once per process.

        In memory the channels may come last, which augmentation likes; `to_float` puts them first for a model.
        """


@runtime_checkable
class Prepared(Protocol):
    """Images that can be made ready before they are read."""

    def prepare(self, report: ReportProgress) -> None: ...


@dataclass(frozen=True)
class JoinedImages:
    """Several domains as one: the images of the first, then those of the second, and so on."""

    parts: Mapping[str, Images]

    @property
    def starts(self) -> np.ndarray:
        """The number of each domain's first image, and the number of all images."""
        return np.concatenate([[0], np.cumsum([len(p) for p in self.parts.values()])])

    @property
    def labels(self) -> np.ndarray:
        return np.concatenate([p.labels for p in self.parts.values()])

    @property
    def names(self) -> Sequence[str]:
        return [f"{domain}/{name}" for domain, part in self.parts.items() for name in part.names]

    @property
    def groups(self) -> None:
        return None

    def __len__(self) -> int:
        return int(self.starts[-1])

    def prepare(self, report: ReportProgress) -> None:
        for part in self.parts.values():
            if isinstance(part, Prepared):
                part.prepare(report)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        indices = np.asarray(indices, dtype=np.int64)
        which = np.searchsorted(self.starts, indices, side="right") - 1
        found: list[torch.Tensor] = [torch.empty(0)] * len(indices)
        for number, (start, part) in enumerate(zip(self.starts, self.parts.values())):
            places = np.flatnonzero(which == number)
            for place, image in zip(places, part.read(indices[places] - start) if len(places) else ()):
                found[place] = image
        return torch.stack(found)


@dataclass(frozen=True)
class DomainDataset:
    """Domains by name, in order, that share their classes; `strict` holds out identities as well as images."""

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Images]
    image_size: int
    strict: bool = False
    path: Path | None = None  # of a folder or a manifest
    fingerprint: str = ""  # digest of its files; a data set known by name has none

    def __post_init__(self) -> None:
        if not self.domains:
            raise InputError(f"data set {self.name!r} has no domains; give it at least one.")
        for domain, images in self.domains.items():
            self._check(domain, images)

    def _check(self, domain: str, images: Images) -> None:
        where = f"domain {domain!r} of data set {self.name!r}"
        if len(images) == 0:
            raise InputError(f"{where} has no images; add some or leave the domain out.")
        for field, values in (("labels", images.labels), ("names", images.names), ("groups", images.groups)):
            if values is not None and len(values) != len(images):
                raise InputError(f"{where} has {len(images)} images but {len(values)} {field}; give one per image.")
        low, high = int(images.labels.min()), int(images.labels.max())
        if low < 0 or high >= len(self.classes):
            raise InputError(
                f"{where} has labels from {low} to {high}; expected 0 to {len(self.classes) - 1}, "
                f"one per class: {', '.join(self.classes)}."
            )
        if self.strict and images.groups is None:
            raise InputError(f"{where} does not say which identity an image shows; load it with strict=False.")

    def domain(self, name: str) -> Images:
        """Return a domain by its name."""
        if name not in self.domains:
            raise unknown("domain", name, tuple(self.domains))
        return self.domains[name]


def prepare(dataset: DomainDataset, domains: Sequence[str], report: ReportProgress) -> None:
    """Decode the images of some domains into the cache now, if they have one, and report the progress."""
    for domain in domains:
        prepare_images(dataset.domain(domain), domain, report)


def prepare_images(images: Images, name: str, report: ReportProgress) -> None:
    """Decode the images of one domain into the cache now, if they have one."""
    if isinstance(images, Prepared):
        images.prepare(named(report, f"decode {name}"))


class Split(NamedTuple):
    """Index arrays into one domain; DomainBed calls them in and out."""

    train: np.ndarray
    held_out: np.ndarray


def split(dataset: DomainDataset, trial_seed: int, holdout: float = 0.2) -> dict[str, Split]:
    """Cut each domain as DomainBed does, or under `strict` by identity, a third of them held out everywhere."""
    if dataset.strict:
        return _split_identities(dataset, trial_seed)
    if not 0 <= holdout < 1:
        raise InputError(f"holdout is a share of each domain: expected 0 or more and below 1, got {holdout}.")
    return {
        name: _split_images(len(images), derive_seed(trial_seed, i), holdout)
        for i, (name, images) in enumerate(dataset.domains.items())
    }


def target_indices(dataset: DomainDataset, domain: str, trial_seed: int) -> np.ndarray:
    """Return the images a target domain is evaluated on: all, or under `strict` those of held-out identities."""
    images = dataset.domain(domain)
    if dataset.strict:
        return split(dataset, trial_seed)[domain].held_out
    return np.arange(len(images))


def _split_images(n: int, seed: int, holdout: float) -> Split:
    keys = list(range(n))
    np.random.RandomState(seed).shuffle(keys)
    order, cut = np.array(keys, dtype=np.int64), int(n * holdout)
    return Split(train=order[cut:], held_out=order[:cut])


def _split_identities(dataset: DomainDataset, trial_seed: int) -> dict[str, Split]:
    groups = {name: np.array(images.groups) for name, images in dataset.domains.items()}
    identities = sorted({str(group) for of_domain in groups.values() for group in of_domain})
    np.random.RandomState(derive_seed(trial_seed, "identities")).shuffle(identities)
    held_out = identities[: len(identities) // 3]
    masks = {name: np.isin(of_domain, held_out) for name, of_domain in groups.items()}
    return {name: Split(np.flatnonzero(~mask), np.flatnonzero(mask)) for name, mask in masks.items()}
