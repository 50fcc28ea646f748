"""Any timm model as a backbone, with the blocks that timm names in its feature info. Needs the extra `itta[timm]`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from itta.errors import InputError, first_line
from itta.nn.backbone import After, Backbone, evaluating, keep

Around = Callable[[str, Callable[[], Tensor]], Tensor]
"""(name of a block, function that runs it) -> the output to go on with."""

STEMS = ("act", "bn", "conv", "norm", "stem")  # feature info also names parts of the stem and the last norm: no blocks


class Tap(nn.Module):
    """A block with a callback around it."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name, self.module = name, module
        self.around: Around | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.around is None:
            return self.module(*args, **kwargs)
        return self.around(self.name, lambda: self.module(*args, **kwargs))


class Stop(Exception):
    """Stop a pass after a block and carry its output out."""

    def __init__(self, z: Tensor) -> None:
        self.z = z


class TimmBackbone(Backbone):
    """timm's model without its classifier. Each block is wrapped in a `Tap`, so no hook is needed."""

    def __init__(self, name: str, pretrained: bool, image_size: int | None = None) -> None:
        model = create_model(name, pretrained, image_size)
        config = model.pretrained_cfg
        super().__init__(tuple(config["mean"]), tuple(config["std"]))
        modules = dict(model.named_modules())
        paths = [info["module"] for info in model.feature_info if info["module"] in modules]
        self.paths = tuple(p for p in paths if not p.rpartition(".")[2].startswith(STEMS))
        if len(self.paths) < 2:
            raise InputError(
                f"the timm model {name!r} has {len(self.paths)} named blocks, and at least 2 are needed: "
                "choose another model."
            )
        if getattr(model, "output_fmt", "NCHW") != "NCHW":
            raise InputError(
                f"the timm model {name!r} gives maps with channels last, and channels first are needed: "
                "choose another model."
            )
        self.block_names = tuple(path.replace(".", "_") for path in self.paths)  # type: ignore[misc]
        for block, path in zip(self.block_names, self.paths):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Tap(block, model.get_submodule(path)))
        for module in model.modules():  # a tape needs values that are not overwritten
            if getattr(module, "inplace", False):
                module.inplace = False
        self.model, self.size = model, image_size or config["input_size"][-1]
        with evaluating(self):
            self.dim = self(self.blank(), tensor_only).shape[1]  # num_features is not always the output's size
            self.late = self.parameters_after(self.block_names[-2])

    def blank(self, like: Tensor | None = None) -> Tensor:
        like = next(self.parameters()) if like is None else like
        return torch.zeros(1, 3, self.size, self.size, dtype=like.dtype, device=like.device)

    def parameters_after(self, block: str) -> tuple[str, ...]:
        """Return the names of the parameters that the output of ``block`` does not depend on."""
        names, parameters = zip(*self.named_parameters())
        found = torch.autograd.grad(self.until(block, self.blank()).sum(), parameters, allow_unused=True)
        return tuple(name for name, g in zip(names, found) if g is None)

    def walk(self, x: Tensor, around: Around) -> Tensor:
        taps = [m for m in self.model.modules() if isinstance(m, Tap)]
        for tap in taps:
            tap.around = around
        try:
            return self.compute(self.model, self.normalise(x))
        finally:
            for tap in taps:
                tap.around = None

    def forward(self, x: Tensor, after: After = keep) -> Tensor:
        return self.walk(x, lambda name, run: self.call(after, name, run()))

    def until(self, block: str, x: Tensor, after: After = keep) -> Tensor:
        self.index(block)

        def around(name: str, run: Callable[[], Tensor]) -> Tensor:
            if name == block:
                raise Stop(run())
            return self.call(after, name, run())

        try:
            self.walk(x, around)
        except Stop as stop:
            return stop.z.to(x.dtype)
        raise AssertionError(f"{block} was never reached")

    def resume(self, block: str, z: Tensor, after: After = keep) -> Tensor:
        """Run the model on a blank image and replace the output of ``block`` by ``z``: timm cannot start at a block.

        Use it in evaluation mode only: in training the blank image would change the statistics of batch normalisation.
        """
        start = self.index(block)

        def around(name: str, run: Callable[[], Tensor]) -> Tensor:
            i = self.index(name)
            if i < start:
                return run()
            return self.call(after, name, z if i == start else run())

        return self.walk(self.blank(z), around)

    @property
    def last_block(self) -> nn.Module:
        """The parameters of the last block and of the layers behind it, such as a norm or a convolution."""
        return nn.ParameterList([self.get_parameter(name) for name in self.late])

    def rename_weights(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Rename the entries of timm's own state dict to ours."""
        taps = {f"{path}.": f"{path}.module." for path in self.paths}

        def ours(key: str) -> str:
            path = next((p for p in taps if key.startswith(p)), "")
            return f"model.{taps.get(path, '')}{key.removeprefix(path)}"

        return {ours(key): value for key, value in state.items()}


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
