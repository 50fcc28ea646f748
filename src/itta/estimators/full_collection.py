"""Collect everything that a model takes along from its source data, the stand-in targets included."""

from collections.abc import Mapping
from typing import TypeVar

import torch

from itta.errors import InputError
from itta.estimators.stand_in_targets import make_stand_ins
from itta.models import source_collection
from itta.models.source_collection import IMAGES, Source, first
from itta.models.trained import Trained

Model = TypeVar("Model", bound=Trained)


def collect(model: Model, batches: Source, images: int = IMAGES) -> Model:
    """Give a model the statistics that adapters and estimators take along from the source data, and return it.

    ``batches`` are batches of images in [0, 1], or (images, labels); or a dict of them, one entry for each source
    domain. Of each domain the first ``images`` are used. Styles need named blocks, Fisher information needs batch
    normalisation, and confusions, temperature and stand-in targets need labels; take images for these that the model
    was not trained on.
    """
    if not isinstance(model, Trained):
        raise InputError(f"expected a model to keep statistics, got {type(model).__name__}: wrap it with itta.wrap.")
    domains = batches if isinstance(batches, Mapping) else {"source": batches}
    kept = {domain: [*first(of_domain, images, f"domain {domain!r}")] for domain, of_domain in domains.items()}
    source_collection.collect(model, kept, images)  # type: ignore[arg-type]
    labelled = {
        domain: (torch.cat([x for x, _ in of_domain]), torch.cat([y for _, y in of_domain if y is not None]))
        for domain, of_domain in kept.items()
        if of_domain and all(y is not None for _, y in of_domain)
    }
    if labelled:
        like = next(model.parameters())
        model.stand_ins = make_stand_ins(model, {d: (x.to(like), y) for d, (x, y) in labelled.items()})
    return model
