"""A trained model on disk: safetensors and JSON, never a pickle.

A model is a directory with ``model.safetensors`` (weights, f_w and the range of its inputs, style bank, Fisher
information) and ``model.json`` (a description of them).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from itta import __version__
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.target import Expected
from itta.errors import InputError
from itta.files import replace_text
from itta.hparams import default
from itta.nn import Backbone, check_backbone, make_backbone
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_bank import StyleBank
from itta.store.tensors import load_tensors, save_tensors
from itta.trial import Trial

FORMAT = "itta-model"
FORMAT_VERSION = 1
DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class Description:
    """The content of model.json, read once and handed on."""

    folder: Path
    algorithm: str
    hparams: Mapping[str, Any]
    backbone: str
    frozen_bn: bool
    normalisation: Mapping[str, Any]
    image_size: int
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    style_bank_domains: tuple[str, ...] | None
    about: Mapping[str, Any] = field(default_factory=dict)
    itta_version: str = __version__

    @cached_property
    def trial(self) -> Trial:
        """The trial that made the model."""
        try:
            return Trial.from_json(self.about["trial"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{self.folder / DESCRIPTION} does not name the trial that made the model ({error!r}): train it with "
                "itta train."
            ) from error

    @property
    def steps(self) -> int:
        """The step at which the weights were taken."""
        return int(self.about["steps"])

    @property
    def expected(self) -> Expected:
        """What the model expects of images."""
        return Expected(self.classes, self.image_size, self.trial if "trial" in self.about else None)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["folder"]
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **values}


def describe(folder: Path, algorithm: Algorithm, backbone: str, about: Mapping[str, Any]) -> Description:
    """Make the description of a trained model."""
    bank = algorithm.style_bank
    return Description(
        folder=folder,
        algorithm=class_name(type(algorithm)),
        hparams=algorithm.describe(),
        backbone=backbone,
        frozen_bn=algorithm.backbone.frozen_bn,
        normalisation={"mean": list(algorithm.backbone.mean), "std": list(algorithm.backbone.std)},
        image_size=algorithm.task.image_size,
        classes=tuple(algorithm.task.classes),
        domains=tuple(algorithm.task.domains),
        style_bank_domains=None if bank is None else tuple(bank.domains),
        about=dict(about),
    )


def save_model(folder: Path, algorithm: Algorithm, backbone: str, about: Mapping[str, Any]) -> Description:
    """Write a trained model; the JSON goes last, so a directory that has it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = with_prefix("model.", algorithm.state_dict())
    if algorithm.style_bank is not None:
        tensors |= with_prefix("style_bank.", algorithm.style_bank.tensors())
    tensors |= with_prefix("fisher.", algorithm.fisher or {})
    tensors |= with_prefix("differences.", algorithm.differences or {})
    tensors |= with_prefix("confusions.", algorithm.confusions or {})
    save_tensors(folder / WEIGHTS, tensors, {})
    description = describe(folder, algorithm, backbone, about)
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
) -> Algorithm:
    """Load a trained model, ready to predict.

    ``algorithm`` and ``backbone`` are the user's own classes, if the model was trained with some. Loading a model
    never imports code that its files name.
    """
    return load_model(read_description(Path(path)), OwnCode(algorithm, backbone))


def load_model(description: Description, own: OwnCode = OwnCode()) -> Algorithm:
    """Build the model of a description and fill it with its weights."""
    d, folder = description, description.folder
    try:
        algorithm = build(d, own)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / DESCRIPTION} is damaged or not ours: {error!r} is missing or wrong.") from error
    tensors, _ = load_tensors(folder / WEIGHTS)
    algorithm.fisher = without_prefix("fisher.", tensors) or None  # models without one may be older
    algorithm.differences = without_prefix("differences.", tensors) or None
    algorithm.confusions = without_prefix("confusions.", tensors) or None
    try:
        algorithm.load_state_dict(without_prefix("model.", tensors))
        if d.style_bank_domains is not None:
            algorithm.style_bank = StyleBank.from_tensors(without_prefix("style_bank.", tensors), d.style_bank_domains)
    except (RuntimeError, KeyError) as error:
        raise InputError(
            f"{folder / WEIGHTS} does not fit its {DESCRIPTION} ({str(error).splitlines()[-1].strip()}): "
            "copy both files from the same run."
        ) from error
    return algorithm.eval()


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
    algorithm = cls(task, default(cls.Hparams, **d.hparams))
    if d.frozen_bn:
        algorithm.backbone.freeze_bn()
    algorithm.backbone.mean = tuple(d.normalisation["mean"])
    algorithm.backbone.std = tuple(d.normalisation["std"])
    return algorithm


def read_description(folder: Path) -> Description:
    """Read model.json and check that it is ours and of a version we can read."""
    path = folder / DESCRIPTION
    values = read_json(folder)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a model of itta (no format {FORMAT!r}).")
    if values.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {values.get('format_version')}, this itta reads {FORMAT_VERSION}: "
            "use the itta version that wrote it, named there."
        )
    own = {k: v for k, v in values.items() if k not in ("format", "format_version")}
    try:
        lists = {k: tuple(own[k]) for k in ("classes", "domains")}
        bank = own["style_bank_domains"]
        return Description(folder, **{**own, **lists, "style_bank_domains": None if bank is None else tuple(bank)})
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged or not ours: {error} is missing or wrong.") from error


def read_json(folder: Path) -> Any:
    """Read model.json, or say why a directory has none."""
    path = folder / DESCRIPTION
    if not folder.is_dir():
        raise InputError(f"no model directory at {folder}: give the --out of a finished itta train.")
    if not path.is_file():
        unfinished = (folder / "trial.json").is_file()
        cure = "its training has not finished: run the same itta train again" if unfinished else "it is not a model"
        raise InputError(f"{folder} has no {DESCRIPTION}: {cure}.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): the file is damaged.") from error
