"""A wrapped network on disk: its weights, its wiring and its statistics. The user's code makes the network again."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Annotated

from msgspec import Meta
from torch import nn

from itta.errors import InputError, first_line
from itta.models.wrapped import Wrapped, wrap
from itta.registry import import_object
from itta.schema import Names, conform, damaged
from itta.store.description import DESCRIPTION, Description
from itta.store.model import OwnCode

OWN_MODULE = "package.module:Name"


@dataclass(frozen=True)
class StoredWiring:
    """The names of a network's parts in model.json."""

    blocks: Names
    head: Annotated[str, Meta(max_length=4096)]


def rebuild(d: Description, own: OwnCode) -> Wrapped:
    """Wrap the network that the user gives as the description says."""
    path = d.folder / DESCRIPTION
    if own.module is None:
        raise InputError(
            f"{path} describes a wrapped network, and a file never makes itta import code. Pass the network yourself: "
            f"module=YourNetwork() in Python, --module {OWN_MODULE} on the command line (it was made by {d.backbone})."
        )
    with damaged(path, "copy the model's directory again"):
        wiring = conform(StoredWiring, dict(d.hparams))
    return wrap(
        make_module(own.module),
        blocks=wiring.blocks,
        head=wiring.head,
        mean=d.normalisation.mean,
        std=d.normalisation.std,
        classes=d.classes,
        image_size=d.image_size,
    )


def make_module(given: str | nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Return a network: as it is, from a function that makes it, or imported from ``package.module:Name``."""
    found = import_object("module", given, OWN_MODULE) if isinstance(given, str) else given
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InputError(f"the module {given!r} is {found!r:.80}: expected a network, or a function that makes one.")
    try:
        signature(found).bind()
    except TypeError as error:
        raise InputError(f"the module {given!r} must be callable without arguments, but {error}.") from None
    try:
        net = found()
    except Exception as error:  # the user's own function may raise anything
        raise InputError(f"the module {given!r} raised {type(error).__name__}: {first_line(error)}.") from error
    if not isinstance(net, nn.Module):
        raise InputError(f"the module {given!r} gives {net!r:.80}: expected a torch.nn.Module.")
    return net
