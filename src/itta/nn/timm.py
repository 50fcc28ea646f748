"""Any timm model as a backbone, with the blocks that timm names in its feature info. Needs the extra `itta[timm]`."""

from typing import Any

from torch import Tensor

from itta.errors import InputError, first_line
from itta.nn.backbone import evaluating
from itta.nn.foreign import ForeignBackbone

STEMS = ("act", "bn", "conv", "norm", "stem")  # feature info also names parts of the stem and the last norm: no blocks


class TimmBackbone(ForeignBackbone):
    """timm's model without its classifier."""

    def __init__(self, name: str, pretrained: bool, image_size: int | None = None) -> None:
        model = create_model(name, pretrained, image_size)
        config = model.pretrained_cfg
        super().__init__(tuple(config["mean"]), tuple(config["std"]))
        modules = dict(model.named_modules())
        paths = [info["module"] for info in model.feature_info if info["module"] in modules]
        paths = [p for p in paths if not p.rpartition(".")[2].startswith(STEMS)]
        if len(paths) < 2:
            raise InputError(
                f"the timm model {name!r} has {len(paths)} named blocks, and at least 2 are needed: "
                "choose another model."
            )
        if getattr(model, "output_fmt", "NCHW") != "NCHW":
            raise InputError(
                f"the timm model {name!r} gives maps with channels last, and channels first are needed: "
                "choose another model."
            )
        self.adopt(model, paths, image_size or config["input_size"][-1])
        with evaluating(self):
            self.dim = self(self.blank(), self.note_shape).shape[1]  # num_features is not always the output's size
            self.late = self.parameters_after(self.block_names[-2])

    def note_shape(self, block: str, z: Tensor) -> Tensor:
        return super().note_shape(block, tensor_only(block, z))


def tensor_only(block: str, z: Tensor) -> Tensor:
    if not isinstance(z, Tensor):
        raise InputError(
            f"{block} of this timm model gives a {type(z).__name__}, not one tensor: choose another model."
        )
    return z


def create_model(name: str, pretrained: bool, image_size: int | None) -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise InputError(
            f"timm:{name} needs the package {error.name}, which is not installed: pip install 'itta[timm]'."
        ) from error
    except (ImportError, RuntimeError) as error:  # a torchvision made for another torch, say
        raise InputError(
            f"timm:{name}: timm is installed, and importing it failed: {first_line(error)}. Install versions of torch, "
            "torchvision and timm that belong together."
        ) from error
    try:
        if image_size is not None:
            try:  # transformers are built for one image size; convolutional networks take no such argument
                return timm.create_model(name, pretrained=pretrained, num_classes=0, img_size=image_size)
            except TypeError:
                pass
        return timm.create_model(name, pretrained=pretrained, num_classes=0)
    except (RuntimeError, OSError, AssertionError) as error:
        raise InputError(f"timm cannot make {name!r}: {error}. timm.list_models() lists its models.") from error
