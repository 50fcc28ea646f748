"""A trained model on disk: safetensors and JSON, never a pickle.

A model is a directory with ``model.safetensors`` (weights, f_w and the range of its inputs, style bank, Fisher
information) and ``model.json`` (a description of them).
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from itta.algorithms import Algorithm, Task, find_algorithm
from itta.errors import InputError, first_line, last_line
from itta.files import make_folder, replace_text
from itta.hparams import default, sensible_numbers
from itta.models.stand_ins import StandIns
from itta.models.trained import Trained
from itta.models.wrapped import Wrapped
from itta.nn import Backbone, check_backbone, make_backbone
from itta.nn.device import place
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_bank import StyleBank
from itta.registry import class_name
from itta.schema import damaged
from itta.store.description import DESCRIPTION, WEIGHTS, Description, Normalisation, is_model, read_description
from itta.store.tensors import check_finite_tensors, load_tensors, read_shapes, save_tensors


def describe(
    folder: Path, model: Trained, network: str, about: Mapping[str, Any], weights_sha256: str = ""
) -> Description:
    """Make the description of a model; ``network`` names its backbone, or the code that makes a wrapped network."""
    bank = model.style_bank
    return Description(
        folder=folder,
        algorithm=class_name(type(model)),
        hparams=model.describe(),
        backbone=network,
        frozen_bn=model.backbone.frozen_bn,
        normalisation=Normalisation(tuple(model.backbone.mean), tuple(model.backbone.std)),
        image_size=model.image_size,
        classes=tuple(model.classes),
        domains=tuple(model.task.domains) if isinstance(model, Algorithm) else (),
        style_bank_domains=None if bank is None else tuple(bank.domains),
        about=dict(about),
        weights_sha256=weights_sha256,
    )


def save_model(folder: Path, model: Trained, network: str, about: Mapping[str, Any]) -> Description:
    """Write a trained model; the JSON goes last, so a directory that has it is complete."""
    check_finite_tensors(
        model.state_dict(), "the model's weights", "nothing is saved; train with a smaller learning rate (lr)"
    )
    make_folder(folder)
    tensors = with_prefix("model.", model.state_dict())
    if model.style_bank is not None:
        tensors |= with_prefix("style_bank.", model.style_bank.tensors())
    for name in STATISTICS:
        tensors |= with_prefix(f"{name}.", getattr(model, name) or {})
    tensors |= with_prefix("stand_ins.", model.stand_ins.tensors() if model.stand_ins else {})
    sha256 = save_tensors(folder / WEIGHTS, tensors, {})
    description = describe(folder, model, network, about, sha256)
    replace_text(folder / DESCRIPTION, json.dumps(description.to_json(), indent=2) + "\n")
    return description


Model = TypeVar("Model", bound=Trained)
STATISTICS = ("fisher", "differences", "confusions")  # of the source data, each a dict of tensors or None


@dataclass(frozen=True)
class OwnCode:
    """The user's own classes, where a model was trained with some: a file names them, and never imports them."""

    algorithm: str | type[Algorithm] | None = None  # a class, or package.module:Class
    backbone: str | Backbone | Callable[[], Backbone] | None = None  # a class or function, or package.module:Name
    module: str | nn.Module | Callable[[], nn.Module] | None = None  # a wrapped network, or what makes it


def load(
    path: str | Path,
    algorithm: str | type[Algorithm] | None = None,
    backbone: str | Backbone | Callable[[], Backbone] | None = None,
    module: str | nn.Module | Callable[[], nn.Module] | None = None,
    device: str | torch.device = "cpu",
) -> Trained:
    """Load a trained model, ready to predict on a device: auto, cpu, cuda, cuda:N or mps.

    ``algorithm`` and ``backbone`` are the user's own classes, if the model was trained with some; ``module`` is the
    user's own network, or a function that makes it, if the model was wrapped. Loading a model never imports code that
    its files name.
    """
    return place(load_model(read_description(Path(path)), OwnCode(algorithm, backbone, module)), device)


def load_model(description: Description, own: OwnCode = OwnCode()) -> Trained:
    """Build the model of a description and fill it with its weights."""
    if description.algorithm == Wrapped.name:
        from itta.store.wrapped_model import rebuild  # it needs this module

        return give_weights(rebuild(description, own), description)
    return load_algorithm(description, own)


def load_algorithm(description: Description, own: OwnCode = OwnCode()) -> Algorithm:
    """Build a model that was trained here and fill it with its weights."""
    check_shapes(description, own)
    return give_weights(build_checked(description, own), description)


def give_weights(model: Model, d: Description) -> Model:
    """Give a model the weights and statistics of its file."""
    tensors, _ = load_tensors(d.folder / WEIGHTS, d.weights_sha256)
    for name in STATISTICS:
        setattr(model, name, without_prefix(f"{name}.", tensors) or None)  # models without one may be older
    try:
        model.load_state_dict(without_prefix("model.", tensors))
        check_statistics(model)
        if d.style_bank_domains is not None:
            model.style_bank = StyleBank.from_tensors(without_prefix("style_bank.", tensors), d.style_bank_domains)
        if stand_ins := without_prefix("stand_ins.", tensors):  # older models have none
            model.stand_ins = StandIns.from_tensors(stand_ins)
            model.stand_ins.check_classes(model.n_classes)
    except (RuntimeError, KeyError, InputError) as error:
        raise does_not_fit(d, last_line(error)) from error
    model.about = d.about
    return model.eval()


def check_statistics(model: Trained) -> None:
    """Refuse statistics of the source data that do not have the shapes of the model."""
    c, dim = model.n_classes, model.backbone.dim
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    expected: dict[str, Mapping[str, tuple[int, ...] | None]] = {
        "fisher": {name: parameters.get(name) for name in model.fisher or {}},
        "differences": {"low": (dim,), "high": (dim,)},
        "confusions": {"mean": (c, c), "temperature": (), "prior": (c,)},
    }
    for name, shapes in expected.items():
        for key, tensor in (getattr(model, name) or {}).items():
            if tuple(tensor.shape) != shapes.get(key):
                raise InputError(
                    f"{name}.{key} has the shape {tuple(tensor.shape)}, expected {shapes.get(key, 'none')}"
                )


def does_not_fit(d: Description, reason: str) -> InputError:
    return InputError(
        f"{d.folder / WEIGHTS} does not fit its {DESCRIPTION} ({reason}): copy both files from the same run."
    )


def check_shapes(d: Description, own: OwnCode) -> None:
    """Refuse a description that asks for larger tensors than its weights file has, before memory is taken.

    The model is built without memory first, on torch's device "meta". A user's own classes may not allow that.
    """
    if own.algorithm is not None or own.backbone is not None:
        return
    shapes = read_shapes(d.folder / WEIGHTS).items()
    found = {name.removeprefix("model."): shape for name, shape in shapes if name.startswith("model.")}
    with torch.device("meta"):
        wanted = {name: tuple(t.shape) for name, t in build_checked(d, own).state_dict().items()}
    for name in dict.fromkeys([*wanted, *found]):
        if wanted.get(name) != found.get(name):
            raise does_not_fit(d, f"{name}: {wanted.get(name, 'none')} described, {found.get(name, 'none')} found")


def build_checked(d: Description, own: OwnCode) -> Algorithm:
    """Build the model; values that make this fail are a fault of the file."""
    file = d.folder / DESCRIPTION
    try:
        return build(d, own)
    except InputError as error:
        if str(file) in str(error) or own != OwnCode():  # it may be a mistake in the user's own code
            raise
        with damaged(file, "copy the model's directory again"):
            raise
    except Exception as error:  # hyper-parameters of a file can make a constructor raise nearly anything
        with damaged(file, "copy the model's directory again"):
            raise InputError(f"no model can be built from it, {type(error).__name__}: {first_line(error)}") from error


def refuse_code_named_by_file(d: Description, own: OwnCode) -> None:
    """Refuse to train the trial of a model again if its file, and not the user, names code of the user's own."""
    if d.algorithm == Wrapped.name:  # nothing is trained again; loading asks for the network
        return
    file, trial = d.folder / DESCRIPTION, d.trial
    given = own.algorithm if own.algorithm is None or isinstance(own.algorithm, str) else class_name(own.algorithm)
    if given != trial.algorithm:
        find_algorithm(trial.algorithm, file)
    if own.backbone != trial.backbone:
        check_backbone(trial.backbone, file)


def build(d: Description, own: OwnCode) -> Algorithm:
    """Build the network and the method of a description, with weights that are not yet those of the model."""
    file = d.folder / DESCRIPTION
    cls = own.algorithm or find_algorithm(d.algorithm, file)
    if isinstance(cls, str):
        cls = find_algorithm(cls)
    if class_name(cls) != d.algorithm:
        raise InputError(f"{file} names the algorithm {d.algorithm!r}, and {class_name(cls)!r} was given.")

    def network() -> Backbone:
        if isinstance(own.backbone, Backbone):
            return copy.deepcopy(own.backbone)
        if callable(own.backbone):
            return own.backbone()
        if own.backbone is not None:
            return make_backbone(own.backbone, "none", d.image_size)
        return make_backbone(d.backbone, "none", d.image_size, file)

    task = Task(d.classes, d.domains, d.image_size, network)
    hp = default(cls.Hparams, **d.hparams)
    with sensible_numbers(hp):
        algorithm = cls(task, hp)
    if d.frozen_bn:
        algorithm.backbone.freeze_bn()
    algorithm.backbone.mean = d.normalisation.mean
    algorithm.backbone.std = d.normalisation.std
    return algorithm


__all__ = [
    "Description",
    "Normalisation",
    "OwnCode",
    "is_model",
    "load",
    "load_algorithm",
    "load_model",
    "read_description",
    "refuse_code_named_by_file",
    "save_model",
]
