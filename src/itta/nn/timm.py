"""Any timm model as a backbone, with the blocks timm itself names in its feature info. Needs the extra `itta[timm]`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.nn.backbone import After, Backbone, keep


class Tap(nn.Module):
    """A block with a place to step in: what ``around`` returns goes on instead of the block's output."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name, self.module = name, module
        self.around: Callable[[Tap, Tensor], Tensor] | None = None

    def forward(self, z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.module(z, *args, **kwargs) if self.around is None else self.around(self, z)


class Stop(Exception):
    """Carry a block's output out of a pass that need not go on."""

    def __init__(self, z: Tensor) -> None:
        self.z = z


class TimmBackbone(Backbone):
    """timm's model without its classifier; its blocks are wrapped in taps, so no hook is needed."""

    def __init__(self, name: str, pretrained: bool, image_size: int | None = None) -> None:
        import_error = None
        try:
            import timm
        except (ImportError, RuntimeError) as error:
            import_error = error
        if import_error is not None:
            raise InputError(f"timm cannot be imported ({import_error}): pip install 'itta[timm]'.") from import_error
        try:
            extra = {"img_size": image_size} if image_size and "vit" in name else {}
            model = timm.create_model(name, pretrained=pretrained, num_classes=0, **extra)
        except (RuntimeError, OSError) as error:
            raise InputError(f"timm cannot make {name!r}: {error}. timm.list_models() names its models.") from error
        config = model.pretrained_cfg
        super().__init__(tuple(config["mean"]), tuple(config["std"]))
        names = [info["module"] for info in model.feature_info]
        self.paths = tuple(n for n in names if isinstance(model.get_submodule(n), nn.Module) and "act" not in n)
        if len(self.paths) < 2:
            raise InputError(f"timm names {len(self.paths)} blocks of {name!r}; at least two are needed.")
        self.block_names = tuple(path.replace(".", "_") for path in self.paths)  # type: ignore[misc]
        for block, path in zip(self.block_names, self.paths):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Tap(block, model.get_submodule(path)))
        for module in model.modules():  # a recorded pass needs values that are not overwritten
            if getattr(module, "inplace", False):
                module.inplace = False
        self.model, self.dim = model, model.num_features
        self.size = image_size or config["input_size"][-1]

    def walk(self, x: Tensor, around: Callable[[Tap, Tensor], Tensor]) -> Tensor:
        taps = [m for m in self.model.modules() if isinstance(m, Tap)]
        for tap in taps:
            tap.around = around
        try:
            return self.model(self.normalise(x))
        finally:
            for tap in taps:
                tap.around = None

    def forward(self, x: Tensor, after: After = keep) -> Tensor:
        return self.walk(x, lambda tap, z: after(tap.name, tap.module(z)))

    def until(self, block: str, x: Tensor, after: After = keep) -> Tensor:
        self.index(block)

        def around(tap: Tap, z: Tensor) -> Tensor:
            z = tap.module(z)
            if tap.name == block:
                raise Stop(z)
            return after(tap.name, z)

        try:
            self.walk(x, around)
        except Stop as stop:
            return stop.z
        raise AssertionError(f"{block} was never reached")

    def resume(self, block: str, z: Tensor, after: After = keep) -> Tensor:
        """Walk a single blank image through the stem, then put ``z`` in its place: timm has no way in half-way."""
        start = self.index(block)

        def around(tap: Tap, blank: Tensor) -> Tensor:
            i = self.index(tap.name)
            if i < start:
                return blank
            return after(tap.name, z if i == start else tap.module(blank))

        return self.walk(torch.zeros(1, 3, self.size, self.size, dtype=z.dtype, device=z.device), around)

    @property
    def last_block(self) -> nn.Module:
        return self.model.get_submodule(self.paths[-1])
