"""Networks with named blocks, and the parts that act between the blocks.

``BACKBONES`` is the registry of backbones: `make_backbone`, `itta list backbones` and the tests read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor

from itta.errors import InputError
from itta.nn.backbone import Backbone
from itta.nn.efficientnet import EfficientNetLite0
from itta.nn.resnet import resnet18, resnet34, resnet50
from itta.nn.small_cnn import SmallCNN
from itta.nn.timm import TimmBackbone
from itta.nn.weights import download_weights, load_weights, read_weights, read_wheel
from itta.registry import import_object, look_up, named_by_file

HUB = "https://download.pytorch.org/models"


@dataclass(frozen=True)
class BackboneEntry:
    """A row of the table of backbones."""

    build: Callable[[], Backbone]
    about: str
    imagenet: Callable[[], Mapping[str, Tensor]] | None = None  # gives its ImageNet weights; None if it has none


# The last part of a file's name is the beginning of its SHA-256, which torch.hub checks.
BACKBONES: dict[str, BackboneEntry] = {
    "efficientnet_lite0": BackboneEntry(
        EfficientNetLite0, "EfficientNet-Lite0 (Tan and Le, ICML 2019); its weights come with the package", read_wheel
    ),
    "resnet18": BackboneEntry(
        resnet18, "ResNet-18 (He et al., CVPR 2016)", partial(download_weights, f"{HUB}/resnet18-f37072fd.pth")
    ),
    "resnet34": BackboneEntry(
        resnet34, "ResNet-34 (He et al., CVPR 2016)", partial(download_weights, f"{HUB}/resnet34-b627a593.pth")
    ),
    "resnet50": BackboneEntry(
        resnet50, "ResNet-50 (He et al., CVPR 2016)", partial(download_weights, f"{HUB}/resnet50-0676ba61.pth")
    ),
    "small_cnn": BackboneEntry(SmallCNN, "four convolutions for tests and 28×28 digits; no pretrained weights"),
}
TIMM = "timm:"
OWN_BACKBONE = "package.module:Name"
OTHER_BACKBONES = {  # forms of a name that is not in the table, and their meaning
    f"{TIMM}MODEL": "any model of timm (needs the extra itta[timm])",
    OWN_BACKBONE: "your own: a subclass of itta.nn.Backbone, or a function that returns one",
}


def make_backbone(
    name: str, weights: str = "imagenet", image_size: int | None = None, file: Path | None = None
) -> Backbone:
    """Build a backbone by name and load its weights: "imagenet", "none" or the path of a file.

    A name is one of the table, ``timm:MODEL``, or ``package.module:Name``. A backbone without ImageNet weights keeps
    the weights it was built with. Pretrained networks keep batch normalisation on their stored statistics. ``file`` is
    the file that holds the name, if a file does: then the name must not make itta import or download anything.
    """
    check_backbone(name, file)
    if name.startswith(TIMM):
        backbone: Backbone = TimmBackbone(name.removeprefix(TIMM), weights == "imagenet", image_size)
        pretrained = weights == "imagenet"
    else:
        entry = find_backbone(name, file)
        backbone, pretrained = entry.build(), False
        if weights == "imagenet" and entry.imagenet is not None:
            load_weights(backbone, entry.imagenet(), f"the ImageNet weights of {name}")
            pretrained = True
    if weights not in ("imagenet", "none"):
        load_weights(backbone, backbone.rename_weights(read_weights(weights)), weights)
        pretrained = True
    return backbone.freeze_bn() if pretrained else backbone


def find_backbone(name: str, file: Path | None = None) -> BackboneEntry:
    """Return the entry of a registered name, or an entry for the ``package.module:Name`` that the user typed."""
    if ":" not in name:
        return look_up("backbone", name, BACKBONES, *OTHER_BACKBONES)
    if file is not None:
        raise named_by_file("backbone", name, file)
    found = import_object("backbone", name, OWN_BACKBONE)
    if not callable(found) or (isinstance(found, type) and not issubclass(found, Backbone)):
        raise not_a_backbone(name, found)
    return BackboneEntry(partial(build_own, name, found), "your own")


def check_backbone(name: str, file: Path | None = None) -> None:
    """Refuse a name that no backbone has; a model of timm is looked up when it is built.

    ``file`` is the file that holds the name, if a file does.
    """
    if not name.startswith(TIMM):
        find_backbone(name, file)
    elif file is not None and ":" in name.removeprefix(TIMM):  # timm would ask its hub, or read another directory
        raise named_by_file("backbone", name, file)


def build_own(name: str, make: Callable[[], Any]) -> Backbone:
    """Call the user's own class or function, and check that it gives a backbone."""
    try:
        signature(make).bind()
    except TypeError as error:
        raise InputError(f"the backbone {name!r} must be callable without arguments, but {error}.") from None
    found = make()
    if not isinstance(found, Backbone):
        raise not_a_backbone(name, found)
    return found


def not_a_backbone(name: str, found: object) -> InputError:
    return InputError(
        f"the backbone {name!r} gives {found!r:.80}: expected a subclass of itta.nn.Backbone, or a function that "
        "returns one."
    )


__all__ = [
    "BACKBONES",
    "OTHER_BACKBONES",
    "Backbone",
    "BackboneEntry",
    "check_backbone",
    "find_backbone",
    "make_backbone",
]
