"""Where Grad-CAM steps into a pass: after a block, by way of the backbone's own callback, so no hook is left behind."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from itta.errors import InputError
from itta.functional.heat_maps import grad_cam
from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_mixing import MixDraw, mix_style
from itta.nn.views import ViewDraw


class Tap:
    """Make the output A of one block a leaf to differentiate by, before what ``after`` does behind the block.

    Nothing is recorded for autograd up to the block, whatever parameters may want a gradient.
    """

    a: Tensor
    parted: Tensor

    def __init__(self, block: str, after: After = keep, parting: str | None = None) -> None:
        self.block, self.after, self.parting = block, after, parting

    def step_in(self, block: str, z: Tensor) -> Tensor:
        return self.after(block, self.take(block, z))

    def take(self, block: str, z: Tensor) -> Tensor:
        if block == self.block:
            z = self.a = z.detach().requires_grad_()
            torch.set_grad_enabled(True)  # until `run` ends
        if block == self.parting:  # where a second view will go its own way
            self.parted = z
        return z

    def run(self, run: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return run()

    def maps(self, losses: Sequence[Tensor]) -> list[Tensor]:
        """The signed map [B, H, W] of each loss; a backward pass each, down to the block and no further.

        A loss [B] is added up: the gradient by an image's A is that of its own loss, as long as no image's loss depends
        on another's A.
        """
        return [
            grad_cam(self.a.detach(), torch.autograd.grad(loss.sum(), self.a, retain_graph=True)[0]) for loss in losses
        ]


def second_view(backbone: Backbone, z: Tensor, draw: ViewDraw, tap: Tap) -> Tensor:
    """z', after a pass whose ``tap`` noted where the views part.

    Parted before the tapped block, z' is a constant to autograd and costs no gradient; at the block or behind it, z'
    depends on A too. Styles are constants as in training, so it never depends on another image's A.
    """
    if not isinstance(draw, MixDraw):
        return draw.scale.to(z) * z + draw.shift.to(z)
    with torch.set_grad_enabled(tap.parted.requires_grad):
        return backbone.resume(draw.block, mix_style(tap.parted, draw), tap.after)


def find_block(backbone: Backbone, image_size: int, block: str | None = None) -> str:
    """The named block, or the last with spatial extent; refuse one whose output is no map."""
    shapes = backbone.block_shapes(image_size)
    if block is not None:
        backbone.index(block)
    spatial = [name for name, shape in shapes.items() if len(shape) == 3 and shape[1] * shape[2] > 1]
    if block in spatial:
        return str(block)
    if block is None and spatial:
        return spatial[-1]
    name = block or backbone.block_names[-1]
    kind = "tokens" if len(shapes[name]) != 3 else "a single cell"
    cure = f"choose from {', '.join(spatial)}" if spatial else "take a convolutional backbone, or larger images"
    raise InputError(
        f"Grad-CAM needs maps of channels × height × width, and {name} gives {kind} of shape {shapes[name]}: {cure}."
    )
