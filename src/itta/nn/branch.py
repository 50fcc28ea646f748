"""A branch: a second last block behind the shared blocks of a backbone."""

from torch import Tensor, nn
from torch.func import functional_call

from itta.nn.backbone import After, Backbone, keep


class Branch(nn.Module):
    """A copy of the weights and statistics of a backbone's last block and of all layers behind it.

    The backbone itself runs, with the copy in place of its own weights. So any backbone can branch, and a backbone that
    keeps batch normalisation on stored statistics does so in the branch too.
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
        """Turn images into the branch's features [B, dim].

        ``after`` is called after each shared block, ``own`` after the branch's own last block.
        """
        last = backbone.block_names[-1]

        def step_in(block: str, z: Tensor) -> Tensor:
            return own(block, z) if block == last else after(block, z)

        return functional_call(backbone, self.replacements(), (x, step_in))

    def replacements(self) -> dict[str, Tensor]:
        """Return the branch's weights and statistics under the names they have in the backbone."""
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name.replace("/", "."): value for name, value in own.items()}


def own_name(name: str) -> str:
    """Turn a parameter's path into a name without dots, which torch does not allow in a name."""
    return name.replace(".", "/")
