"""Save and load, for models and for adapters: a model is a directory, an adapter is a file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import nn

from itta.adapters import Adapter
from itta.algorithms import Algorithm
from itta.errors import InputError
from itta.models.trained import Trained
from itta.nn import Backbone
from itta.nn.device import place
from itta.store.adapter_state import load_adapter, save_adapter
from itta.store.model import OwnCode, load_model, read_description, save_model

if TYPE_CHECKING:
    from typing_extensions import Unpack


class OwnClasses(TypedDict, total=False):
    """The user's own code that a model needs."""

    module: str | nn.Module | Callable[[], nn.Module] | None
    algorithm: str | type[Algorithm] | None
    backbone: str | Backbone | Callable[[], Backbone] | None


def save(kept: Trained | Adapter, path: str | Path) -> None:
    """Save a model to a directory, or an adapter's state to a file.

    A wrapped network is saved with its weights, the names of its parts and its statistics; its code is not.
    """
    if isinstance(kept, Adapter):
        save_adapter(Path(path), kept)
    elif isinstance(kept, Trained):
        save_model(Path(path), kept, network_name(kept), kept.about)
    else:
        raise InputError(f"expected a model or an adapter to save, got {type(kept).__name__}: wrap it with itta.wrap.")


def load(
    path: str | Path,
    model: nn.Module | None = None,
    *,
    device: str | torch.device = "cpu",
    adapter: type[Adapter] | None = None,
    **own: "Unpack[OwnClasses]",
) -> Any:
    """Load a model from its directory, ready to predict; or an adapter from its file, for the ``model`` it goes with.

    A model comes to the ``device``: auto, cpu, cuda, cuda:N or mps. An adapter is where its model is.

    A file never makes itta import code, so pass your own code: ``module``, the network of a wrapped model or a function
    that makes it; ``algorithm`` and ``backbone``, classes that a model was trained with; ``adapter``, the class of an
    adapter.
    """
    path = Path(path)
    if not path.is_file():
        return place(load_model(read_description(path), OwnCode(**own)), device)
    if not isinstance(model, Trained):
        raise InputError(f"{path} is an adapter: give its model too, itta.load({str(path)!r}, model).")
    return load_adapter(path, model, adapter)


def network_name(model: Trained) -> str:
    """Name the code that makes the network, for the reader of the file."""
    trial = model.about.get("trial")
    if isinstance(trial, dict) and isinstance(trial.get("backbone"), str):
        return trial["backbone"]
    made: Any = type(model.backbone) if isinstance(model, Algorithm) else model.backbone.model
    cls = made if isinstance(made, type) else type(made)
    return f"{cls.__module__}:{cls.__qualname__}"
