"""Make a model directory of a network that was trained elsewhere, with statistics of its source images."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from itta.adapters import adapt
from itta.data import load_dataset
from itta.data.class_order import in_class_order
from itta.data.dataset import DomainDataset, Images, prepare
from itta.data.loaders import stream
from itta.errors import InputError, last_line
from itta.estimators import full_collection
from itta.models import source_collection
from itta.models.families import find_size
from itta.models.source_collection import IMAGES
from itta.models.wrapped import Wrapped, wrap
from itta.nn.device import place, resolve_device
from itta.nn.weights import read_weights
from itta.progress import ReportProgress, silent
from itta.run.evaluate import evaluate
from itta.seeds import derive_seed
from itta.settings import AdoptSettings, DataAccess
from itta.store.model import is_model, save_model
from itta.store.wrapped_model import make_module
from itta.trial import Trial


@dataclass(frozen=True)
class Adopted:
    """A network that was made a model, and its accuracy on the images that gave the statistics."""

    model: Wrapped
    folder: Path
    accuracy: dict[str, float] = field(default_factory=dict)  # by source domain


def adopt(
    module: str,
    data: str,
    out: Path,
    settings: AdoptSettings = AdoptSettings(),
    access: DataAccess = DataAccess(),
    report: ReportProgress = silent,
) -> Adopted:
    """Wrap the network that ``module`` makes, collect the statistics of its source images, and save the model."""
    check_free(out)
    device = resolve_device(settings.device)
    net = make_module(module)
    if settings.weights:
        load_own_weights(net, settings.weights)
    size = settings.image_size or find_size(net)
    dataset = load_dataset(data, image_size=size, allow_missing_classes=True, access=access)
    classes = settings.classes or dataset.classes
    dataset = in_class_order(dataset, classes)
    colours: dict[str, Any] = {"mean": settings.mean or None, "std": settings.std or None}
    model = wrap(net, blocks=settings.blocks, head=settings.head, classes=classes, image_size=size, **colours)
    model = place(model, device)
    prepare(dataset, tuple(dataset.domains), report)
    chosen = {domain: choose(images, settings.seed, domain) for domain, images in dataset.domains.items()}
    collect = full_collection.collect if settings.stand_ins else source_collection.collect
    collect(model, {domain: batches(dataset.domain(domain), rows) for domain, rows in chosen.items()})
    source = adapt(model, "source")
    accuracy = {d: evaluate(source, dataset.domain(d), rows, 32, None).accuracy for d, rows in chosen.items()}
    model.about = {"trial": stand_in_trial(module, data, dataset, size).to_json(), "steps": 0}
    save_model(out, model, module, model.about)
    return Adopted(model, out, accuracy)


def check_free(out: Path) -> None:
    """Refuse a directory that holds something."""
    if is_model(out):
        raise InputError(f"{out} holds a model: choose another --out, or delete it.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty directory: choose another --out.")


def load_own_weights(net: nn.Module, path: str) -> None:
    """Fill the network with the weights of a file; every entry must fit."""
    try:
        net.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise InputError(
            f"{path} does not fit {type(net).__name__} ({last_line(error)}): give the weights of this network."
        ) from error


def choose(images: Images, seed: int, domain: str) -> np.ndarray:
    """Draw some images of a domain."""
    return np.random.RandomState(derive_seed(seed, "adopt", domain)).permutation(len(images))[:IMAGES]


def batches(images: Images, rows: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    return ((x, y) for _, x, y in stream(images, rows, 32))


def stand_in_trial(module: str, data: str, dataset: DomainDataset, size: int) -> Trial:
    """Return a trial that names the data and the network, for records; nothing was trained here."""
    return Trial(
        str(dataset.path or data),
        Wrapped.name,
        tuple(dataset.domains),
        backbone=module,
        weights="none",
        image_size=size,
        steps=1,
        allow_missing_classes=True,
        regime="large",
        fingerprint=dataset.fingerprint,
    )
