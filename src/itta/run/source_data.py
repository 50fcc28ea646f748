"""Images of the source domains, from which a finished training collects the statistics that adapters use."""

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset, Split
from itta.data.loaders import stream
from itta.models.source_statistics import difference_range, fisher_of_norms, source_styles
from itta.seeds import derive_seed
from itta.trial import Trial

IMAGES = 64  # per source domain


def collect_statistics(algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> None:
    """Give a trained model its style bank, its Fisher information, and the range of the inputs of f_w."""
    algorithm.style_bank = source_styles(algorithm, source_images(dataset, splits, trial))
    algorithm.fisher = fisher_of_norms(algorithm, source_images(dataset, splits, trial))
    seed = derive_seed(trial.seed, "differences")
    algorithm.differences = difference_range(algorithm, source_images(dataset, splits, trial), seed)


def source_images(dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> dict[str, Iterator[Tensor]]:
    """Draw batches of some training images of each source domain."""

    def batches(domain: str) -> Iterator[Tensor]:
        rng = np.random.RandomState(derive_seed(trial.seed, "style bank", domain))
        chosen = rng.permutation(splits[domain].train)[:IMAGES]
        return (x for _, x, _ in stream(dataset.domain(domain), chosen, 32))

    return {domain: batches(domain) for domain in trial.train_domains}
