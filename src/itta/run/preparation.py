"""Prepare a training: check that it has enough data, and build the untrained model."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.dataset import DomainDataset, Split
from itta.data.loaders import stream
from itta.errors import InputError
from itta.functional.transfers import send
from itta.hparams import sample, sensible_numbers
from itta.nn import Backbone, make_backbone
from itta.nn.device import device_of
from itta.seeds import derive_seed, seed_all
from itta.trial import Trial

HEAD_IMAGES = 256  # of each source domain, to which the head is fitted
HEAD_PENALTY = 0.1  # on the squares of the head's weights; with less, the head learns single images by heart


def check_held_out(trial: Trial, splits: dict[str, Split]) -> None:
    """Refuse a domain too small to measure on."""
    for domain in (*trial.train_domains, *trial.test_domains):
        train, held_out = splits[domain]
        if len(held_out) == 0 or len(train) == 0:
            raise InputError(
                f"domain {domain!r} has {len(train) + len(held_out)} images: too few to hold some out and train on the "
                "rest. Give it at least 5."
            )


def build(trial: Trial, dataset: DomainDataset) -> Algorithm:
    """Build the untrained algorithm of a trial; a pure function of the trial."""
    cls = find_algorithm(trial.algorithm)
    assert trial.regime != "auto"
    hp = sample(cls.Hparams, trial.hparams_seed, trial.trial_seed, trial.regime, **trial.overrides)
    seed_all(trial.seed)
    task = Task(
        dataset.classes,
        trial.train_domains,
        trial.image_size,
        lambda: set_bn(make_backbone(trial.backbone, trial.weights, trial.image_size), trial.bn),
    )
    with sensible_numbers(hp):
        return cls(task, hp).train()


def set_bn(backbone: Backbone, bn: str) -> Backbone:
    """Freeze batch normalisation, or let it use each batch, as the trial says; auto leaves the network as it is."""
    if bn != "auto":
        backbone.frozen_bn = bn == "frozen"
    return backbone.train(backbone.training)


def fit_head(algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial) -> None:
    """Fit a linear head to the features of some training images, with the backbone as it is.

    A random head pulls the pretrained features out of shape before it has learned anything: Kumar et al., Fine-Tuning
    can Distort Pretrained Features and Underperform Out-of-Distribution, ICLR 2022, https://arxiv.org/abs/2202.10054.
    A head of another kind keeps its random start.
    """
    head = algorithm.head
    if not isinstance(head, nn.Linear) or head.in_features != algorithm.backbone.dim:
        return
    z, y = training_features(algorithm.eval(), dataset, splits, trial)
    algorithm.train()
    scale = float(z.square().mean().sqrt())
    weight = torch.zeros(head.weight.shape, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(head.bias), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = cross_entropy(z / scale @ weight.T + bias, y) + HEAD_PENALTY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        head.weight.copy_(weight / scale)
        head.bias.copy_(bias)


@torch.no_grad()
def training_features(
    algorithm: Algorithm, dataset: DomainDataset, splits: Mapping[str, Split], trial: Trial
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and labels of some training images of each source domain, in double precision on the CPU."""
    features, labels = [], []
    for domain in trial.train_domains:
        rng = np.random.RandomState(derive_seed(trial.seed, "head", domain))
        chosen = rng.permutation(splits[domain].train)[:HEAD_IMAGES]
        for _, x, y in stream(dataset.domain(domain), chosen, 64):
            features.append(algorithm.features(send(x, device_of(algorithm))).double().cpu())
            labels.append(y)
    return torch.cat(features), torch.cat(labels)
