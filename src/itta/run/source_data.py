"""Images of the source domains, from which a finished training collects the statistics that adapters use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset, Split
from itta.data.loaders import stream
from itta.estimators.stand_in_targets import make_stand_ins
from itta.functional.augment import to_float
from itta.functional.transfers import send
from itta.models.source_statistics import (
    collect_confusions,
    difference_range,
    fisher_of_norms,
    fit_early_reader,
    source_styles,
)
from itta.models.stand_ins import StandIns
from itta.nn.device import device_of
from itta.seeds import derive_seed
from itta.trial import Trial

IMAGES = 64  # per source domain
stand_ins_wanted: ContextVar[bool] = ContextVar("stand_ins_wanted", default=True)
READER_IMAGES = 300  # per source domain, from which the early reader learns
HELD_OUT_IMAGES = 250  # per source domain, to see how the model answers


@contextmanager
def without_stand_ins(leave_out: bool = True) -> Iterator[None]:
    """Train without stand-in targets: they take as long as predicting about 2,500 images."""
    token = stand_ins_wanted.set(not leave_out)
    try:
        yield
    finally:
        stand_ins_wanted.reset(token)


def collect_statistics(algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> None:
    """Give a trained model the statistics of its source data, each as the attribute of its name."""

    def images() -> dict[str, Iterator[Tensor]]:
        device = device_of(algorithm)
        found = source_images(dataset, splits, trial)
        return {domain: (send(x, device) for x in batches) for domain, batches in found.items()}

    algorithm.style_bank = source_styles(algorithm, images())
    algorithm.fisher = fisher_of_norms(algorithm, images())
    algorithm.differences = difference_range(algorithm, images(), derive_seed(trial.seed, "differences"))
    held_out = ((send(x, device_of(algorithm)), y) for x, y in held_out_images(dataset, splits, trial))
    confusions = collect_confusions(algorithm, held_out)
    algorithm.confusions = {**confusions, "prior": class_shares(dataset, splits, trial)}
    wanted = stand_ins_wanted.get()
    algorithm.stand_ins = collect_stand_ins(algorithm, dataset, splits, trial) if wanted else None


def collect_stand_ins(
    algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial
) -> StandIns | None:
    """Measure the answers to damaged held-out images; the model must have its other statistics already."""
    images = {}
    for domain in trial.train_domains:
        own, rows = dataset.domain(domain), splits[domain].held_out[:HELD_OUT_IMAGES]
        images[domain] = to_float(own.read(rows)), torch.from_numpy(own.labels[rows])
    reader = fit_early_reader(algorithm, training_images(algorithm, dataset, splits, trial))
    return make_stand_ins(algorithm, images, derive_seed(trial.seed, "stand-ins"), reader)


def training_images(
    algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of some training images of each source domain on the model's device, with their labels."""
    for domain in trial.train_domains:
        rng = np.random.RandomState(derive_seed(trial.seed, "early reader", domain))
        chosen = rng.permutation(splits[domain].train)[:READER_IMAGES]
        for _, x, y in stream(dataset.domain(domain), chosen, 64):
            yield send(x, device_of(algorithm)), y


def source_images(dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> dict[str, Iterator[Tensor]]:
    """Draw batches of some training images of each source domain."""

    def batches(domain: str) -> Iterator[Tensor]:
        rng = np.random.RandomState(derive_seed(trial.seed, "style bank", domain))
        chosen = rng.permutation(splits[domain].train)[:IMAGES]
        return (x for _, x, _ in stream(dataset.domain(domain), chosen, 32))

    return {domain: batches(domain) for domain in trial.train_domains}


def held_out_images(
    dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of held-out images of the source domains, with their labels."""
    for domain in trial.train_domains:
        for _, x, y in stream(dataset.domain(domain), splits[domain].held_out[:HELD_OUT_IMAGES], 64):
            yield x, y


def class_shares(dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> Tensor:
    """Return the share of each class in the training images, [classes]; every domain counts the same."""
    trained_on = [dataset.domain(d).labels[splits[d].train] for d in trial.train_domains]
    shares = [np.bincount(y, minlength=len(dataset.classes)) / len(y) for y in trained_on]
    return torch.from_numpy(np.mean(shares, 0)).float()
