"""The library as people use it in a notebook: train, evaluate and predict, with data and networks of their own."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data import open_dataset
from itta.data.class_order import in_class_order
from itta.data.dataset import DomainDataset, Images, target_indices
from itta.data.folder import list_images
from itta.data.folder_images import FolderImages
from itta.data.torch_datasets import DatasetImages, from_torch
from itta.errors import InputError
from itta.nn import BACKBONES, Backbone, BackboneEntry
from itta.nn.device import resolve_device
from itta.nn.weights import digest_of
from itta.progress import ReportProgress, silent
from itta.recipes import find_recipe, follow
from itta.registry import class_name
from itta.run import evaluate as scoring
from itta.run import train as training
from itta.run.results import Evaluation, Predictions, TrainedResult
from itta.seeds import derive_seed
from itta.settings import RunSettings, TrainSettings
from itta.trial import Trial

Data = str | Path | DomainDataset | Mapping[str, Any]  # a name, a folder, a data set, or torch datasets by domain
Network = str | Backbone | Callable[[], Backbone]


def train(
    data: Data,
    algorithm: str | type[Algorithm] = "itta",
    target: str | Sequence[str] = (),
    out: str | Path | None = None,
    backbone: Network | None = None,
    **settings: Any,
) -> TrainedResult:
    """Train a model on all domains but the targets.

    ``data`` is a name, a folder root/domain/class/image, a `DomainDataset`, or a dict of torch datasets by domain.
    ``backbone`` is a name, an instance, or a class or function that makes one. The settings are the fields of
    `TrainSettings`, ``recipe`` (quick, full, none or auto), ``seed``, ``eval_every``, ``report``, ``device`` (auto,
    cpu, cuda, cuda:N or mps), ``precision`` (float32 or bf16), and hyper-parameters of the method; those that are not
    given are the recipe's. With ``out`` the model is kept in that directory, and an interrupted training goes on.
    """
    known = {f.name for f in fields(TrainSettings)}
    seed, precision = settings.pop("seed", 0), settings.pop("precision", "float32")
    how = RunSettings(**{name: settings.pop(name) for name in {"eval_every", "device"} & settings.keys()})
    recipe = find_recipe(settings.pop("recipe", "auto"), resolve_device(how.device).type)
    report: ReportProgress = settings.pop("report", silent)
    followed = follow(recipe, {name: settings.pop(name) for name in known & settings.keys()})
    followed.check()
    dataset = open_domains(data, followed, seed)
    method = algorithm if isinstance(algorithm, str) else class_name(algorithm)
    targets = (target,) if isinstance(target, str) else tuple(target)
    for name in targets:
        dataset.domain(name)
    sources = tuple(d for d in dataset.domains if d not in targets)
    if not sources:
        raise InputError(f"no domain is left to train on: domains are {', '.join(dataset.domains)}.")
    with named_backbone(backbone or followed.backbone) as network, directory(out) as folder:
        trial = Trial(
            str(dataset.path or dataset.name),
            method,
            sources,
            targets,
            trial_seed=seed,
            run_seed=derive_seed(seed, "itta.train"),  # the same whatever the data are read from
            fingerprint=dataset.fingerprint,
            weights_digest=digest_of(followed.weights),
            overrides={**recipe.hparams(method, followed), **settings},
            precision=precision,
            **(followed.shared() | {"image_size": dataset.image_size, "backbone": network}),
        )
        result = training.train(trial, folder, dataset, how, report)
    result.model.about = result.description.about
    return TrainedResult(result.model, result.records, folder if out is not None else None)


def evaluate(
    adapter: nn.Module,
    data: Data,
    domain: str | Sequence[str] = (),
    batch_size: int = 32,
    seed: int = 0,
    against: nn.Module | None = None,
) -> Evaluation:
    """Measure an adapter, or a model as it is, on each domain of the data; it starts anew for each.

    ``domain`` names the domains to use; all without it. ``against`` is another adapter or model, usually the model
    without adaptation, to be shown beside it. ``seed`` orders the images. Data known by name are split as they were
    for the training of the model.
    """
    chosen = as_adapter(adapter)
    model = chosen.model
    trial = Trial.from_json(model.about["trial"]) if "trial" in model.about else None
    strict, split_seed = (trial.strict, trial.trial_seed) if trial else (False, 0)
    expected = TrainSettings(image_size=model.image_size, strict=strict, allow_missing_classes=True)
    dataset = in_class_order(open_domains(data, expected, split_seed, model.classes), model.classes)
    domains = ((domain,) if isinstance(domain, str) else tuple(domain)) or tuple(dataset.domains)
    rows = {name: target_indices(dataset, name, split_seed) for name in domains}

    def run(one: Adapter) -> dict[str, Any]:
        return {d: scoring.evaluate(one, dataset.domain(d), rows[d], batch_size, seed) for d in domains}

    return Evaluation(chosen.name, run(chosen), {} if against is None else run(as_adapter(against)))


def predict(adapter: nn.Module, data: Any, batch_size: int = 32) -> Predictions:
    """Predict images in their order, and learn from them if the adapter does.

    ``data`` is an image file or a folder of images, a list of them, a torch dataset, or a tensor of images [B, 3, H, W]
    in [0, 1].
    """
    chosen = as_adapter(adapter)
    images = open_images(data, chosen.model.image_size)
    found = list(scoring.predictions(chosen, images, np.arange(len(images)), batch_size))
    predicted, confidence = (np.concatenate([part[i] for part in found]) for i in (2, 3))
    labels = tuple(chosen.model.classes[i] for i in predicted)
    return Predictions(chosen.name, tuple(images.names), labels, tuple(confidence.tolist()))


def open_domains(data: Data, settings: TrainSettings, seed: int, classes: Sequence[str] = ()) -> DomainDataset:
    """Open data of any form; ``classes`` name those of torch datasets that do not name them."""
    if isinstance(data, DomainDataset):
        return data
    if isinstance(data, Mapping):
        named = any(hasattr(d, "classes") for d in data.values())
        return from_torch(data, settings.image_size, () if named else classes)
    if isinstance(data, (str, Path)):
        return open_dataset(str(data), settings, seed=seed)
    raise InputError(
        f"expected a folder, a DomainDataset or a dict of torch datasets by domain, got {type(data).__name__}: name "
        "the domain, for example {'site-1': dataset}."
    )


def open_images(data: Any, image_size: int) -> Images:
    """Open images without labels."""
    paths = [data] if isinstance(data, (str, Path)) else data
    if isinstance(paths, (list, tuple)) and all(isinstance(path, (str, Path)) for path in paths):
        files = list_images(paths)
        return FolderImages(files, [-1] * len(files), image_size)
    if isinstance(data, Tensor) and data.ndim != 4:
        raise InputError(f"expected images [B, 3, H, W], got a tensor of shape {tuple(data.shape)}.")
    return DatasetImages(data, image_size, "images", labelled=False)


def as_adapter(given: nn.Module) -> Adapter:
    """Return an adapter as it is, and a model as the adapter that changes nothing."""
    return given if isinstance(given, Adapter) else adapt(given, "source")


@contextmanager
def directory(out: str | Path | None) -> Iterator[Path]:
    """Yield the directory to train in; without one, a temporary one that is deleted afterwards."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="itta-") as temporary:
        yield Path(temporary) / "model"


@contextmanager
def named_backbone(backbone: Network) -> Iterator[str]:
    """Give a backbone of the user's own a name for the time of a training; a name stays as it is."""
    if isinstance(backbone, str):
        yield backbone
        return
    made = backbone

    def build() -> Backbone:
        return copy.deepcopy(made) if isinstance(made, Backbone) else made()

    name = f"own-{type(made).__name__ if isinstance(made, Backbone) else getattr(made, '__name__', 'backbone')}"
    BACKBONES[name] = BackboneEntry(build, "your own")
    try:
        yield name
    finally:
        del BACKBONES[name]
