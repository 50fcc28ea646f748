"""A second end for a backbone: its own last block behind the blocks it shares."""

from torch import Tensor, nn
from torch.func import functional_call

from itta.nn.backbone import After, Backbone, keep


class Branch(nn.Module):
    """Own weights and statistics for the last block of a backbone, and for what comes after it, as they are now.

    The backbone itself runs, with these in place of its own: so any backbone can branch, and where it keeps batch
    normalisation on stored statistics the branch does too.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        late = {id(p) for p in backbone.last_block.parameters()}
        names = {name for name, p in backbone.named_parameters() if id(p) in late}
        modules = {name.rpartition(".")[0] for name in names}
        for name, p in backbone.named_parameters():
            if name in names:
                self.register_parameter(own_name(name), nn.Parameter(p.detach().clone()))
        for name, b in backbone.named_buffers():
            if name.rpartition(".")[0] in modules:
                self.register_buffer(own_name(name), b.clone())

    def forward(self, backbone: Backbone, x: Tensor, after: After = keep, own: After = keep) -> Tensor:
        """Images to the branch's features [B, dim].

        ``after`` steps in after each shared block, ``own`` after the last, which is the branch's own.
        """
        last = backbone.block_names[-1]

        def step_in(block: str, z: Tensor) -> Tensor:
            return own(block, z) if block == last else after(block, z)

        return functional_call(backbone, self.replacements(), (x, step_in))

    def replacements(self) -> dict[str, Tensor]:
        """What takes the place of the backbone's own, by its names there."""
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name.replace("/", "."): value for name, value in own.items()}


def own_name(name: str) -> str:
    """A parameter's path as one name: dots are not allowed there."""
    return name.replace(".", "/")
