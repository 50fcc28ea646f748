"""Networks with named blocks, and what steps in between the blocks."""

from collections.abc import Callable
from pathlib import Path

from itta.errors import unknown
from itta.nn.backbone import Backbone
from itta.nn.efficientnet import EfficientNetLite0
from itta.nn.resnet import resnet18, resnet34, resnet50
from itta.nn.small_cnn import SmallCNN
from itta.nn.timm import TimmBackbone
from itta.nn.weights import imagenet_weights, load_weights, read_weights

BACKBONES: dict[str, Callable[[], Backbone]] = {
    "efficientnet_lite0": EfficientNetLite0,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "small_cnn": SmallCNN,
}


def make_backbone(name: str, weights: str = "imagenet", image_size: int | None = None) -> Backbone:
    """Build a backbone by name and fill it: weights is "imagenet", "none" or the path of a file.

    ``timm:MODEL`` takes any model of timm. Pretrained networks keep batch normalisation on their stored statistics.
    """
    if name.startswith("timm:"):
        backbone: Backbone = TimmBackbone(name.removeprefix("timm:"), weights == "imagenet", image_size)
    elif name in BACKBONES:
        backbone = BACKBONES[name]()
    else:
        raise unknown("backbone", name, [*BACKBONES, "timm:MODEL"])
    if weights == "none" or (name == "small_cnn" and weights == "imagenet"):
        return backbone
    if weights != "imagenet":
        state = read_weights(weights)
        fitting = backbone.from_timm_names(state) if isinstance(backbone, TimmBackbone) else state
        load_weights(backbone, fitting, str(Path(weights)))
    elif not name.startswith("timm:"):
        load_weights(backbone, imagenet_weights(name), f"the ImageNet weights of {name}")
    return backbone.freeze_bn()


__all__ = ["BACKBONES", "Backbone", "make_backbone"]
