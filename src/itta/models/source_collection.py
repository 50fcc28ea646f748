"""Give a model the statistics of its source data, from batches of images."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from itta.errors import InputError
from itta.models.source_statistics import collect_confusions, fisher_of_norms, source_styles
from itta.models.trained import Trained

IMAGES = 256  # of each source domain
Item = Tensor | tuple[Tensor, Tensor]  # images in [0, 1] [B, 3, H, W], alone or with their labels [B]
Source = Iterable[Item] | Mapping[str, Iterable[Item]]
Model = TypeVar("Model", bound=Trained)


def collect(model: Model, batches: Source, images: int = IMAGES) -> Model:
    """Give a model the statistics that adapters take along from the source data, and return it.

    ``batches`` are batches of images in [0, 1], or (images, labels); or a dict of them, one entry for each source
    domain. Of each domain the first ``images`` are used. Styles need named blocks, Fisher information needs batch
    normalisation, and confusions and temperature need labels; take images for these that the model was not trained on.
    """
    domains = batches if isinstance(batches, Mapping) else {"source": batches}
    kept = {domain: [*first(of_domain, images, f"domain {domain!r}")] for domain, of_domain in domains.items()}
    if not kept or not all(kept.values()):
        raise InputError("no source images: give batches of images, or a dict of domains with batches of each.")
    like = next(model.parameters())
    found = {domain: [x.to(like) for x, _ in of_domain] for domain, of_domain in kept.items()}
    if model.backbone.block_names:
        model.style_bank = source_styles(model, found)
    model.fisher = fisher_of_norms(model, found)
    labelled = [(x.to(like), y) for of_domain in kept.values() for x, y in of_domain if y is not None]
    if labelled:
        labels = [torch.cat([y for _, y in of_domain if y is not None]) for of_domain in kept.values()]
        check_labels(torch.cat(labels), model.n_classes)
        shares = torch.stack([y.bincount(minlength=model.n_classes) / len(y) for y in labels])
        model.confusions = {**collect_confusions(model, labelled), "prior": shares.mean(0)}
    return model


def first(batches: Iterable[Item], n: int, where: str) -> Iterable[tuple[Tensor, Tensor | None]]:
    """Yield batches up to the n-th image; the last one is cut."""
    for item in batches:
        x, y = item if isinstance(item, (tuple, list)) else (item, None)
        if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"{where}: expected batches of images [B, 3, H, W] as floats in [0, 1], got {got}.")
        if y is not None and (len(y) != len(x) or y.ndim != 1 or y.is_floating_point()):
            raise InputError(f"{where}: expected one whole number for each of {len(x)} images, got {tuple(y.shape)}.")
        yield x[:n], None if y is None else y[:n].long().cpu()
        n -= len(x)
        if n <= 0:
            return


def check_labels(labels: Tensor, n_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        raise InputError(f"expected labels from 0 to {n_classes - 1}, got {low} to {high}.")
