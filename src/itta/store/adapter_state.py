"""An adapter in a file: its method, its settings and its state, as safetensors. The model is stored elsewhere."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from itta import __version__
from itta.adapters import Adapter, Guard, adapt, find_adapter
from itta.errors import InputError, last_line
from itta.models.trained import Trained
from itta.registry import class_name
from itta.schema import Name, conform, damaged
from itta.store.tensors import check_finite_tensors, load_tensors, save_tensors

FORMAT = "itta-adapter"
FORMAT_VERSION = 1
WEIGHTS = ("moving.", "inner.moving.")  # names of the parameters that an adapter changes


@dataclass(frozen=True)
class AdapterDescription:
    """The facts in the file beside the tensors."""

    adapter: Name  # a registered name, or package.module:Class of a user's own
    settings: dict[str, Any]
    guard: dict[str, Any] | None  # settings of the guard, if there is one
    classes: int
    itta_version: str = __version__


def save_adapter(path: Path, adapter: Adapter) -> None:
    """Write the whole state of an adapter; a reader, or a crash, sees the old file or the new one."""
    inner = adapter.inner if isinstance(adapter, Guard) else adapter
    guard = asdict(adapter.hp) if isinstance(adapter, Guard) else None
    about = AdapterDescription(class_name(type(inner)), asdict(inner.hp), guard, inner.model.n_classes)
    state = adapter.state_dict()
    check_finite_tensors(
        weights_in(state),
        "the adapter's weights",
        "nothing is saved; reset it, or adapt with a smaller learning rate (lr)",
    )
    save_tensors(path, state, {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(about)})


def load_adapter(path: Path, model: Trained, adapter: type[Adapter] | None = None) -> Adapter:
    """Make an adapter for the model, and let it go on from the state in the file.

    ``adapter`` is the user's own class, if the file names one: a file never makes itta import code.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}: give the file that itta.save wrote for an adapter.")
    state, facts = load_tensors(path)
    if facts.get("format") != FORMAT:
        raise InputError(f"{path} does not hold an adapter of itta (no format {FORMAT!r}).")
    if facts.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {facts.get('format_version')}, this itta reads {FORMAT_VERSION}: use the itta "
            "version that wrote it, named there."
        )
    with damaged(path, "save the adapter again"):
        about = conform(AdapterDescription, {k: v for k, v in facts.items() if not k.startswith("format")})
    cls = adapter or find_adapter(about.adapter, path)
    if class_name(cls) != about.adapter:
        raise InputError(f"{path} names the adapter {about.adapter!r}, and {class_name(cls)!r} was given.")
    if about.classes != model.n_classes:
        raise InputError(f"{path} belongs to a model of {about.classes} classes, and this one has {model.n_classes}.")
    with damaged(path, "give the model that it was made for, or save the adapter again"):
        made = adapt(model, cls, guard=False if about.guard is None else about.guard, **about.settings)
        check_finite_tensors(weights_in(state), "its weights", "they were damaged after the adapter was saved")
    try:
        check_weights(made.state_dict(), state)
        made.load_state_dict(state)
    except (RuntimeError, KeyError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"{path} does not fit this model ({last_line(error)}): give the model that it was made for."
        ) from error
    return made


def weights_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in the state of an adapter. Its other tensors may hold infinities, as T3A's do."""
    return {name: tensor for name, tensor in state.items() if name.startswith(WEIGHTS)}


def check_weights(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse a state without some of the adapter's weights, or with weights of another shape."""
    for name, tensor in wanted.items():
        if name.startswith(WEIGHTS) and (name not in found or found[name].shape != tensor.shape):
            got = tuple(found[name].shape) if name in found else "none"
            raise InputError(f"{name}: {tuple(tensor.shape)} expected, {got} found")
