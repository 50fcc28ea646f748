"""model.json: the description of a model on disk, read once, checked and handed on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from itta import __version__
from itta.data.target import Expected
from itta.errors import InputError
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
        """The classes, the image size and the trial, for opening a target."""
        return Expected(self.classes, self.image_size, self.trial if "trial" in self.about else None)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["folder"]
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **values}


def is_model(folder: Path) -> bool:
    """Tell whether a directory holds a complete model."""
    return (folder / DESCRIPTION).is_file()


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
