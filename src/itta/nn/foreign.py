"""Somebody else's network as a backbone: its own forward pass, with a callback around the blocks that are named.

Each block is wrapped in a `Tap`, so no hook is needed. The network must be a copy that belongs to the backbone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from itta.nn.backbone import After, Backbone, keep

Around = Callable[["Tap", Callable[[], Tensor]], Tensor]
"""(a block's tap, function that runs the block) -> the output to go on with."""


class Tap(nn.Module):
    """A block with a callback around it. It has the attributes and the items of the block."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name, self.module = name, module
        self.around: Around | None = None
        self.gives_tuple = False  # known after the first pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.around is None:
            return self.module(*args, **kwargs)
        beside: tuple[Any, ...] = ()  # some blocks give a tuple: the output, and things beside it

        def run() -> Tensor:
            nonlocal beside
            out = self.module(*args, **kwargs)
            self.gives_tuple = isinstance(out, tuple)
            if self.gives_tuple:
                out, *rest = out
                beside = tuple(rest)
            return out

        z = self.around(self, run)
        return (z, *beside) if self.gives_tuple else z

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def __bool__(self) -> bool:
        return True


class Stop(Exception):
    """Stop a pass after a block and carry its output out."""

    def __init__(self, z: Tensor) -> None:
        self.z = z


class ForeignBackbone(Backbone):
    """A network with a forward pass of its own, from normalised images to features."""

    model: nn.Module  # the network
    size: int  # pixels on each side of a blank image
    shapes: dict[str, tuple[int, ...]]  # of the blocks' outputs for the blank image
    late: tuple[str, ...] = ()  # parameters behind the last block but one

    def adopt(self, model: nn.Module, paths: Sequence[str], size: int) -> None:
        """Take a network over: tap the submodules at ``paths``, its blocks, and let no layer overwrite its input."""
        self.paths = tuple(paths)
        self.block_names = tuple(path.replace(".", "_") for path in paths)  # type: ignore[misc]
        for block, path in zip(self.block_names, self.paths):
            replace_submodule(model, path, Tap(block, model.get_submodule(path)))
        for module in model.modules():  # a block's output is used again, and a tape needs values that stay
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]
        self.model, self.size, self.shapes = model, size, {}

    def untap(self, blocks: Sequence[str]) -> None:
        """Give up blocks that cannot serve."""
        for block in blocks:
            path = self.paths[self.block_names.index(block)]
            replace_submodule(self.model, path, self.model.get_submodule(path).module)  # type: ignore[arg-type]
        kept = [(p, b) for p, b in zip(self.paths, self.block_names) if b not in blocks]
        self.paths, self.block_names = tuple(p for p, _ in kept), tuple(b for _, b in kept)  # type: ignore[misc]

    def note_shape(self, block: str, z: Tensor) -> Tensor:
        """Keep the shape of a block's output, in a pass of the blank image."""
        self.shapes[block] = tuple(z.shape[1:])
        return z

    def rename_weights(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Rename the entries of the network's own state dict to ours."""
        taps = {f"{path}.": f"{path}.module." for path in self.paths}

        def ours(key: str) -> str:
            path = next((p for p in taps if key.startswith(p)), "")
            return f"model.{taps.get(path, '')}{key.removeprefix(path)}"

        return {ours(key): value for key, value in state.items()}

    def blank(self, like: Tensor | None = None) -> Tensor:
        like = next(self.parameters()) if like is None else like
        return torch.zeros(1, 3, self.size, self.size, dtype=like.dtype, device=like.device)

    def parameters_after(self, block: str) -> tuple[str, ...]:
        """Return the names of the parameters that the output of ``block`` does not depend on."""
        names, parameters = zip(*self.named_parameters())
        found = torch.autograd.grad(self.until(block, self.blank()).sum(), parameters, allow_unused=True)
        return tuple(name for name, g in zip(names, found) if g is None)

    def run(self, x: Tensor) -> Tensor:
        """Turn normalised images into features, by the network's own forward pass."""
        return self.model(x)

    def walk(self, x: Tensor, around: Around) -> Tensor:
        taps = [self.model.get_submodule(path) for path in self.paths]
        for tap in taps:
            assert isinstance(tap, Tap)
            tap.around = around
        try:
            return self.compute(self.run, self.normalise(x))
        finally:
            for tap in taps:
                tap.around = None  # type: ignore[assignment]

    def forward(self, x: Tensor, after: After = keep) -> Tensor:
        return self.walk(x, lambda tap, run: self.call(after, tap.name, run()))

    def until(self, block: str, x: Tensor, after: After = keep) -> Tensor:
        self.index(block)

        def around(tap: Tap, run: Callable[[], Tensor]) -> Tensor:
            if tap.name == block:
                raise Stop(run())
            return self.call(after, tap.name, run())

        try:
            self.walk(x, around)
        except Stop as stop:
            return stop.z.to(x.dtype)
        raise AssertionError(f"{block} was never reached")

    def resume(self, block: str, z: Tensor, after: After = keep) -> Tensor:
        """Run the network on one blank image and replace the output of ``block`` by ``z``: it cannot start at a block.

        Earlier blocks do not run, but give zeros; layers between them run on the one image.
        Use it in evaluation mode only: in training the blank image would change the statistics of batch normalisation.
        """
        start = self.index(block)

        def around(tap: Tap, run: Callable[[], Tensor]) -> Tensor:
            i = self.index(tap.name)
            if i > start:
                return self.call(after, tap.name, run())
            out = run() if tap.gives_tuple or tap.name not in self.shapes else z.new_zeros(1, *self.shapes[tap.name])
            return self.call(after, tap.name, z) if i == start else out

        return self.walk(self.blank(z), around)

    @property
    def last_block(self) -> nn.Module:
        """The parameters of the last block and of the layers behind it, such as a norm or a convolution."""
        return nn.ParameterList([self.get_parameter(name) for name in self.late])


def replace_submodule(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put a module in the place of the submodule at a path."""
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)
