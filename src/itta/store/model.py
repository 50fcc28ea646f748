"""Checkpoints and trained models on disk: safetensors and JSON, written atomically, never a pickle.

A trained model is a directory with ``model.safetensors`` (weights, f_w and the range of its inputs, style bank, Fisher
information) and ``model.json`` (what they are).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from itta import __version__
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.errors import InputError
from itta.hparams import default
from itta.nn import make_backbone
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors, with_prefix, without_prefix
from itta.nn.style_bank import StyleBank
from itta.records import replace_text

FORMAT = "itta-model"
FORMAT_VERSION = 1


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write one safetensors file atomically."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, {"json": json.dumps(metadata)})
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("json", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}. The file is damaged or no safetensors file.") from error


@dataclass
class Progress:
    """How far a training has come: what, besides tensors, a resumed run needs to equal one that never stopped."""

    step: int = 0  # steps done
    log_sums: dict[str, float] = field(default_factory=dict)
    log_counts: dict[str, int] = field(default_factory=dict)  # a method may log some values in some steps only
    best: float = -1.0  # best source validation accuracy so far


def save_checkpoint(path: Path, algorithm: Algorithm, progress: Progress, key: str) -> None:
    tensors = with_prefix("model.", algorithm.state_dict())
    for name, optimizer in algorithm.optimizers.items():
        tensors |= with_prefix(f"optimizer.{name}.", optimizer_tensors(optimizer))
    save_tensors(path, tensors, {"key": key, "progress": vars(progress)})


def load_checkpoint(path: Path, algorithm: Algorithm, key: str) -> Progress:
    """Fill the algorithm and its optimisers; the checkpoint must belong to the same trial."""
    tensors, metadata = load_tensors(path)
    if metadata.get("key") != key:
        raise InputError(f"{path} belongs to another trial: choose another --out, or delete that directory.")
    algorithm.load_state_dict(without_prefix("model.", tensors))
    for name, optimizer in algorithm.optimizers.items():
        load_optimizer_tensors(optimizer, without_prefix(f"optimizer.{name}.", tensors))
    try:
        return Progress(**metadata["progress"])
    except TypeError as error:
        raise InputError(f"{path} is of another version of itta ({error}): delete that directory.") from error


def save_model(folder: Path, algorithm: Algorithm, backbone: str, about: Mapping[str, Any]) -> None:
    """Write a trained model; the JSON goes last, so a directory with it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = with_prefix("model.", algorithm.state_dict())
    bank = algorithm.style_bank
    if bank is not None:
        tensors |= with_prefix("style_bank.", bank.tensors())
    tensors |= with_prefix("fisher.", algorithm.fisher or {})
    tensors |= with_prefix("differences.", algorithm.differences or {})
    tensors |= with_prefix("confusions.", algorithm.confusions or {})
    save_tensors(folder / "model.safetensors", tensors, {})
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "itta_version": __version__,
        "algorithm": algorithm_name(algorithm),
        "hparams": algorithm.describe(),
        "backbone": backbone,
        "frozen_bn": algorithm.backbone.frozen_bn,
        "normalisation": {"mean": list(algorithm.backbone.mean), "std": list(algorithm.backbone.std)},
        "image_size": algorithm.task.image_size,
        "classes": list(algorithm.task.classes),
        "domains": list(algorithm.task.domains),
        "style_bank_domains": None if bank is None else list(bank.domains),
        "about": dict(about),
    }
    replace_text(folder / "model.json", json.dumps(description, indent=2) + "\n")


def algorithm_name(algorithm: Algorithm) -> str:
    """The registered name, or where to import the user's own class from."""
    cls = type(algorithm)
    return algorithm.name if cls.__module__.startswith("itta.") else f"{cls.__module__}:{cls.__qualname__}"


def load(path: str | Path) -> Algorithm:
    """Load a trained model, ready to predict."""
    folder = Path(path)
    d = read_description(folder)
    try:
        cls = find_algorithm(d["algorithm"])
        task = Task(
            tuple(d["classes"]), tuple(d["domains"]), d["image_size"],
            lambda: make_backbone(d["backbone"], "none", d["image_size"]),
        )  # fmt: skip
        algorithm = cls(task, default(cls.Hparams, **d["hparams"]))
        if d["frozen_bn"]:
            algorithm.backbone.freeze_bn()
        norm = d["normalisation"]
        algorithm.backbone.mean, algorithm.backbone.std = tuple(norm["mean"]), tuple(norm["std"])
        bank_domains = d["style_bank_domains"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / 'model.json'} is damaged or not ours: {error!r} is missing or wrong.") from error
    tensors, _ = load_tensors(folder / "model.safetensors")
    algorithm.fisher = without_prefix("fisher.", tensors) or None  # models without one may be older
    algorithm.differences = without_prefix("differences.", tensors) or None
    algorithm.confusions = without_prefix("confusions.", tensors) or None
    try:
        algorithm.load_state_dict(without_prefix("model.", tensors))
        if bank_domains is not None:
            algorithm.style_bank = StyleBank.from_tensors(without_prefix("style_bank.", tensors), bank_domains)
    except (RuntimeError, KeyError) as error:
        raise InputError(
            f"{folder / 'model.safetensors'} does not fit its model.json ({str(error).splitlines()[-1].strip()}): "
            "copy both files from the same run."
        ) from error
    return algorithm.eval()


def read_description(folder: Path) -> dict[str, Any]:
    """model.json, checked to be ours and of a version we can read."""
    path = folder / "model.json"
    if not folder.is_dir():
        raise InputError(f"no model directory at {folder}: give the --out of a finished itta train.")
    if not path.is_file():
        unfinished = (folder / "checkpoint.safetensors").is_file()
        cure = "its training has not finished: run the same itta train again" if unfinished else "it is not a model"
        raise InputError(f"{folder} has no model.json: {cure}.")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): the file is damaged.") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a model of itta (no format {FORMAT!r}).")
    if description.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {description.get('format_version')}, this itta reads {FORMAT_VERSION}: "
            "use the itta version that wrote it, named there."
        )
    return description
