"""What a trained model takes along from its source data, for adapters and for those who look into it.

Each function takes a model and batches of images on its device, and changes neither. Statistics stay on the host;
adapters move what they need.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.functional.priors import calibrated_temperature, mean_answers
from itta.functional.ridge import ridge_classifier
from itta.models.early_reader import EarlyFeatures, EarlyReader
from itta.models.second_view import draw_target_view, f_w_input
from itta.models.trained import Trained, frozen_copy
from itta.nn.backbone import evaluating
from itta.nn.batch_norm import has_batch_norm, norm_parameters, use_batch_statistics
from itta.nn.style_bank import StyleBank, collect_styles
from itta.nn.views import mixing_points, two_views

Batches = Mapping[str, Iterable[Tensor]]  # source domain -> batches of images in [0, 1]
READER_PENALTY = 0.3  # chosen on source domains: docs/results/estimates_selection.md


def source_styles(model: Trained, images: Batches) -> StyleBank:
    """Collect the style bank: the styles of the images of each source domain."""
    inputs = {domain: map(model.inputs, batches) for domain, batches in images.items()}
    return collect_styles(model.backbone, inputs, mixing_points(model.backbone))


def fisher_of_norms(model: Trained, images: Batches) -> dict[str, Tensor] | None:
    """Compute the Fisher information of a backbone with batch normalisation; None for any other."""
    if not has_batch_norm(model.backbone):
        return None
    batches = (x for of_domain in images.values() for x in of_domain)
    return fisher_information(model, (x for x in batches if len(x) > 1)) or None  # one image has no statistics


def fisher_information(trained: Trained, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """F: the mean over source batches of the squared gradient of the cross-entropy to the model's own predictions.

    Batch normalisation reads the statistics of the batch, as it will at test time; a smaller batch counts less.
    Efficient Test-Time Model Adaptation without Forgetting. Niu et al., ICML 2022. https://arxiv.org/abs/2204.02610
    """
    model = frozen_copy(trained)
    use_batch_statistics(model.backbone)
    moving = norm_parameters(model.backbone, "backbone")
    parameters = [p.requires_grad_() for p in moving.values()]
    fisher, images = {name: torch.zeros_like(p) for name, p in moving.items()}, 0
    for x in batches:
        logits = model.predict(x)
        loss = F.cross_entropy(logits, logits.argmax(1))
        for f, g in zip(fisher.values(), torch.autograd.grad(loss, parameters, materialize_grads=True)):
            f += len(x) * g.square()
        images += len(x)
    return {name: (f / images).cpu() for name, f in fisher.items()} if images else {}


@torch.no_grad()
def difference_range(model: Trained, images: Batches, seed: int) -> dict[str, Tensor] | None:
    """Measure, in every dimension, the range of the inputs of f_w, styles mixed across domains; None without f_w."""
    if not hasattr(model, "f_w"):
        return None
    generator = torch.Generator().manual_seed(seed)
    differences = []
    with evaluating(model):
        for parts in zip(*images.values()):
            x = model.inputs(torch.cat(parts))
            drawn = draw_target_view(model, len(x), 0, generator)
            z, z_aug = two_views(partial(model.backbone, x), drawn)
            differences.append(f_w_input(model, z - z_aug))
    h = torch.cat(differences).cpu()
    return {"low": h.amin(0), "high": h.amax(0)}


@torch.no_grad()
def collect_confusions(model: Trained, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Compute the calibrated temperature on labelled batches, and the mean answer to each class at that temperature."""
    with evaluating(model):
        found = [(model.predict(x).float().cpu(), y) for x, y in batches]
    logits, labels = (torch.cat(part) for part in zip(*found))
    temperature = calibrated_temperature(logits, labels)
    return {"mean": mean_answers(logits / temperature, labels), "temperature": torch.tensor(temperature)}


@torch.no_grad()
def fit_early_reader(model: Trained, batches: Iterable[tuple[Tensor, Tensor]]) -> EarlyReader | None:
    """Fit a linear classifier to the last block but one, on training images; None if there is no such block."""
    early, features, labels = EarlyFeatures(model.backbone), [], []
    with evaluating(model):
        for x, y in batches:
            model.features(x, early)
            if early.latest is None:
                return None
            features.append(early.latest)
            labels.append(y)
    return EarlyReader(*ridge_classifier(torch.cat(features), torch.cat(labels), model.n_classes, READER_PENALTY))
