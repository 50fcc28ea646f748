"""A tap on a block: the place where Grad-CAM takes the activations of a pass.

It uses the backbone's own callback after each block, so no hook is left behind.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from itta.errors import InputError
from itta.functional.heat_maps import grad_cam
from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_mixing import MixDraw, mix_style
from itta.nn.views import ViewDraw, add_noise


class BlockTap:
    """Make the output A of one block a leaf of autograd, so that losses can be differentiated by it.

    A is the output before ``after`` changes it. Autograd records nothing before the block, even if parameters there
    require gradients.
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
        if block == self.parting:  # the second view continues from here
            self.parted = z
        return z

    def run(self, run: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return run()

    def maps(self, losses: Sequence[Tensor]) -> list[Tensor]:
        """The signed map [B, H, W] of each loss. Each takes a backward pass that ends at the block.

        A loss [B] is summed over the images. If no image's loss depends on the A of another image, the gradient by an
        image's A is that of its own loss.
        """
        return [
            grad_cam(self.a.detach(), torch.autograd.grad(loss.sum(), self.a, retain_graph=True)[0]) for loss in losses
        ]


def second_view(backbone: Backbone, z: Tensor, draw: ViewDraw, tap: BlockTap) -> Tensor:
    """The features z' of the second view; ``tap`` has kept the activations of the block where the two views part.

    If they part before the tapped block, z' is a constant for autograd and costs no gradient. Otherwise z' depends on A
    too. Styles are constants, as in training, so z' never depends on the A of another image.
    """
    if not isinstance(draw, MixDraw):
        return add_noise(z, draw)
    with torch.set_grad_enabled(tap.parted.requires_grad):
        return backbone.resume(draw.block, mix_style(tap.parted, draw), tap.after)


def find_block(backbone: Backbone, image_size: int, block: str | None = None) -> str:
    """The named block, or by default the last one with a spatial output; refuse a block without one."""
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
