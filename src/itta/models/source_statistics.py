"""What a trained model takes along from its source data, for those who adapt it or look into it."""

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from itta.adapters.eata import fisher_information
from itta.algorithms import Algorithm
from itta.algorithms.consistency import draw_target_view
from itta.data.dataset import DomainDataset, Split
from itta.data.loaders import stream
from itta.functional.priors import calibrated_temperature, mean_answers
from itta.nn.backbone import evaluating
from itta.nn.batch_norm import has_batch_norm
from itta.nn.style_bank import StyleBank, collect_styles
from itta.nn.views import two_views
from itta.seeds import derive_seed
from itta.trial import Trial

SOURCE_IMAGES = 64  # per source domain
HELD_OUT_IMAGES = 250  # per source domain, to see how the model answers


def source_styles(algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial) -> StyleBank:
    """The style bank: styles of some training images of each source domain."""
    batches = source_images(dataset, splits, trial)
    images = {domain: map(algorithm.inputs, batches[domain]) for domain in trial.train_domains}
    return collect_styles(algorithm.backbone, images, algorithm.backbone.block_names[:2])


def source_fisher(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, Tensor] | None:
    """The Fisher information on the same images, where the backbone has the batch normalisation it is meant for."""
    if not has_batch_norm(algorithm.backbone):
        return None
    batches = (x for images in source_images(dataset, splits, trial).values() for x in images)
    return fisher_information(algorithm, (x for x in batches if len(x) > 1)) or None  # one image has no statistics


@torch.no_grad()
def source_differences(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, Tensor] | None:
    """The range, in every dimension, of what f_w gets to see on the same images, styles mixed across domains."""
    if not hasattr(algorithm, "f_w"):
        return None
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "differences"))
    found = []
    with evaluating(algorithm):
        for parts in zip(*source_images(dataset, splits, trial).values()):
            x = algorithm.inputs(torch.cat(parts))
            drawn = draw_target_view(algorithm, len(x), 0, generator)
            z, z_aug = two_views(partial(algorithm.backbone, x), drawn)
            found.append(z - z_aug if algorithm.hp.difference == "z-z'" else z_aug - z)
    h = torch.cat(found)
    return {"low": h.amin(0), "high": h.amax(0)}


def source_confusions(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, Tensor]:
    """How the model answers held-out images of the sources, and how often each class comes in what it trained on."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for domain in trial.train_domains:
            for _, x, y in stream(dataset.domain(domain), splits[domain].held_out[:HELD_OUT_IMAGES], 64):
                yield x, y

    classes = len(dataset.classes)
    trained_on = [dataset.domain(d).labels[splits[d].train] for d in trial.train_domains]
    shares = [np.bincount(y, minlength=classes) / len(y) for y in trained_on]  # every domain is drawn as often
    return {**collect_confusions(algorithm, batches()), "prior": torch.from_numpy(np.mean(shares, 0)).float()}


@torch.no_grad()
def collect_confusions(algorithm: Algorithm, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The calibrated temperature on labelled batches, and the mean answer to each class at that temperature."""
    with evaluating(algorithm):
        found = [(algorithm.predict(x).float().cpu(), y) for x, y in batches]
    logits, labels = (torch.cat(part) for part in zip(*found))
    temperature = calibrated_temperature(logits, labels)
    return {"mean": mean_answers(logits / temperature, labels), "temperature": torch.tensor(temperature)}


def source_images(dataset: DomainDataset, splits: dict[str, Split], trial: Trial) -> dict[str, Iterator[Tensor]]:
    """Batches of some training images of each source domain."""

    def batches(domain: str) -> Iterator[Tensor]:
        rng = np.random.RandomState(derive_seed(trial.seed, "style bank", domain))
        chosen = rng.permutation(splits[domain].train)[:SOURCE_IMAGES]
        return (x for _, x, _ in stream(dataset.domain(domain), chosen, 32))

    return {domain: batches(domain) for domain in trial.train_domains}
