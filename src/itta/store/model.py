"""A trained model on disk: safetensors and JSON, never a pickle.

A model is a directory with ``model.safetensors`` (weights, f_w and the range of its inputs, style bank, Fisher
information) and ``model.json`` (a description of them).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta

from itta import __version__
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.target import Expected
from itta.errors import InputError, first_line, last_line
from itta.files import replace_text
from itta.hparams import default, sensible_numbers
from itta.nn import Backbone, check_backbone, make_backbone
from itta.nn.device import place
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_bank import StyleBank
from itta.schema import (
    MAX_CLASSES,
    Count,
    Finite,
    ImageSize,
    Name,
    Names,
    Positive,
    conform,
    convert,
    damaged,
    read_json,
)  # fmt: skip
from itta.store.tensors import check_finite_tensors, load_tensors, read_shapes, save_tensors
from itta.trial import Trial

FORMAT = "itta-model"
FORMAT_VERSION = 1
DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
Classes = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_CLASSES)]


@dataclass(frozen=True)
class Normalisation:
    """The mean and the deviation of the colours red, green and blue."""

    mean: tuple[Finite, ...]
    std: tuple[Positive, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3:
            raise InputError("the normalisation needs a mean and a std of three colours")


@dataclass(frozen=True)
class Description:
    """The content of model.json, read once and handed on."""

    folder: Path
    algorithm: Name
    hparams: Mapping[str, Any]
    backbone: Name
    frozen_bn: bool
    normalisation: Normalisation
    image_size: ImageSize
    classes: Classes
    domains: Names
    style_bank_domains: Names | None
    about: Mapping[str, Any] = field(default_factory=dict)
    itta_version: str = __version__
    weights_sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""  # models of version 0.1 have none

    @cached_property
    def trial(self) -> Trial:
        """The trial that made the model."""
        try:
            return Trial.from_json(self.about.get("trial"))
        except InputError as error:
            raise InputError(
                f"{self.folder / DESCRIPTION} does not name the trial that made the model ({error}): train it with "
                "itta train."
            ) from error

    @property
    def steps(self) -> int:
        """The step at which the weights were taken."""
        with damaged(self.folder / DESCRIPTION, "train the model with itta train"):
            return int(convert(self.about.get("steps"), Count))

    @property
    def expected(self) -> Expected:
        """What the model expects of images."""
        return Expected(self.classes, self.image_size, self.trial if "trial" in self.about else None)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["folder"]
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **values}


def describe(
    folder: Path, algorithm: Algorithm, backbone: str, about: Mapping[str, Any], weights_sha256: str = ""
) -> Description:
    """Make the description of a trained model."""
    bank = algorithm.style_bank
    return Description(
        folder=folder,
        algorithm=class_name(type(algorithm)),
        hparams=algorithm.describe(),
        backbone=backbone,
        frozen_bn=algorithm.backbone.frozen_bn,
        normalisation=Normalisation(tuple(algorithm.backbone.mean), tuple(algorithm.backbone.std)),
        image_size=algorithm.task.image_size,
        classes=tuple(algorithm.task.classes),
        domains=tuple(algorithm.task.domains),
        style_bank_domains=None if bank is None else tuple(bank.domains),
        about=dict(about),
        weights_sha256=weights_sha256,
    )


def save_model(folder: Path, algorithm: Algorithm, backbone: str, about: Mapping[str, Any]) -> Description:
    """Write a trained model; the JSON goes last, so a directory that has it is complete."""
    check_finite_tensors(
        algorithm.state_dict(), "the model's weights", "nothing is saved; train with a smaller learning rate (lr)"
    )
    folder.mkdir(parents=True, exist_ok=True)
    tensors = with_prefix("model.", algorithm.state_dict())
    if algorithm.style_bank is not None:
        tensors |= with_prefix("style_bank.", algorithm.style_bank.tensors())
    tensors |= with_prefix("fisher.", algorithm.fisher or {})
    tensors |= with_prefix("differences.", algorithm.differences or {})
    tensors |= with_prefix("confusions.", algorithm.confusions or {})
    sha256 = save_tensors(folder / WEIGHTS, tensors, {})
    description = describe(folder, algorithm, backbone, about, sha256)
    replace_text(folder / DESCRIPTION, json.dumps(description.to_json(), indent=2) + "\n")
    return description


def class_name(cls: type[Algorithm]) -> str:
    """Return the registered name of a method, or package.module:Class of a user's own."""
    return cls.name if cls.__module__.startswith("itta.") else f"{cls.__module__}:{cls.__qualname__}"


def is_model(folder: Path) -> bool:
    """Tell whether a directory holds a complete model."""
    return (folder / DESCRIPTION).is_file()


@dataclass(frozen=True)
class OwnCode:
    """The user's own classes, where a model was trained with some: a file names them, and never imports them."""

    algorithm: str | type[Algorithm] | None = None  # a class, or package.module:Class
    backbone: str | Callable[[], Backbone] | None = None  # a class or function, or package.module:Name


def load(
    path: str | Path,
    algorithm: str | type[Algorithm] | None = None,
    backbone: str | Callable[[], Backbone] | None = None,
    device: str | torch.device = "cpu",
) -> Algorithm:
    """Load a trained model, ready to predict on a device: auto, cpu, cuda, cuda:N or mps.

    ``algorithm`` and ``backbone`` are the user's own classes, if the model was trained with some. Loading a model
    never imports code that its files name.
    """
    return place(load_model(read_description(Path(path)), OwnCode(algorithm, backbone)), device)


def load_model(description: Description, own: OwnCode = OwnCode()) -> Algorithm:
    """Build the model of a description and fill it with its weights."""
    d, folder = description, description.folder
    check_shapes(d, own)
    algorithm = build_checked(d, own)
    tensors, _ = load_tensors(folder / WEIGHTS, d.weights_sha256)
    algorithm.fisher = without_prefix("fisher.", tensors) or None  # models without one may be older
    algorithm.differences = without_prefix("differences.", tensors) or None
    algorithm.confusions = without_prefix("confusions.", tensors) or None
    try:
        algorithm.load_state_dict(without_prefix("model.", tensors))
        if d.style_bank_domains is not None:
            algorithm.style_bank = StyleBank.from_tensors(without_prefix("style_bank.", tensors), d.style_bank_domains)
    except (RuntimeError, KeyError, InputError) as error:
        raise does_not_fit(d, last_line(error)) from error
    return algorithm.eval()


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
    try:
        return build(d, own)
    except InputError:
        raise
    except Exception as error:  # hyper-parameters of a file can make a constructor raise nearly anything
        raise InputError(
            f"no model can be built from {d.folder / DESCRIPTION} ({type(error).__name__}: {first_line(error)}): "
            "the file is damaged or not ours."
        ) from error


def refuse_code_named_by_file(d: Description, own: OwnCode) -> None:
    """Refuse to train the trial of a model again if its file, and not the user, names code of the user's own."""
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


def read_description(folder: Path) -> Description:
    """Read model.json and check that it is ours and of a version we can read."""
    path = folder / DESCRIPTION
    values = read_values(folder)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a model of itta (no format {FORMAT!r}).")
    if values.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {values.get('format_version')}, this itta reads {FORMAT_VERSION}: "
            "use the itta version that wrote it, named there."
        )
    with damaged(path, "copy the model's directory again"):
        found = conform(Description, {k: v for k, v in values.items() if not k.startswith("format")}, folder=folder)
        if len(set(found.classes)) < len(found.classes):
            raise InputError("two of its classes have the same name")
    return found


def read_values(folder: Path) -> Any:
    """Read model.json, or say why a directory has none."""
    path = folder / DESCRIPTION
    if not folder.is_dir():
        raise InputError(f"no model directory at {folder}: give the --out of a finished itta train.")
    if not path.is_file():
        unfinished = (folder / "trial.json").is_file()
        cure = "its training has not finished: run the same itta train again" if unfinished else "it is not a model"
        raise InputError(f"{folder} has no {DESCRIPTION}: {cure}.")
    with damaged(path, "copy the model's directory again"):
        return read_json(path)
