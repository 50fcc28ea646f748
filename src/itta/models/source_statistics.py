"""What a trained model takes along from its source data, for those who adapt it or look into it."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from itta.adapters.eata import fisher_information
from itta.algorithms import Algorithm
from itta.algorithms.consistency import draw_target_view
from itta.data.dataset import DomainDataset, Split
from itta.data.loaders import stream
from itta.nn.backbone import evaluating
from itta.nn.batch_norm import has_batch_norm
from itta.nn.style_bank import StyleBank, collect_styles
from itta.nn.views import two_views
from itta.seeds import derive_seed
from itta.trial import Trial

SOURCE_IMAGES = 64  # per source domain


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


def source_images(dataset: DomainDataset, splits: dict[str, Split], trial: Trial) -> dict[str, Iterator[Tensor]]:
    """Batches of some training images of each source domain."""

    def batches(domain: str) -> Iterator[Tensor]:
        rng = np.random.RandomState(derive_seed(trial.seed, "style bank", domain))
        chosen = rng.permutation(splits[domain].train)[:SOURCE_IMAGES]
        return (x for _, x, _ in stream(dataset.domain(domain), chosen, 32))

    return {domain: batches(domain) for domain in trial.train_domains}
