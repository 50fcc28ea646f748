"""The dimension-wise stack of ITTA. It serves as f_w, which shapes the consistency loss, and as f_Θ, which adapts after
a block.

Each layer is ReLU(a∘h + b), with a = 1 and b = 0 at the start. The last layer has no ReLU, or half of its range would
be dead. (The paper's text has a ReLU there; its released code does not.) The depth is 1 or more.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.errors import InputError


class AffineStack(nn.Module):
    """h ↦ a_m∘…ReLU(a_1∘h + b_1)… + b_m, entry by entry.

    With ``identity`` the module starts as the identity, bit for bit, also for negative features: min(h, 0), which the
    first ReLU removes, is added at the end. For h ≥ 0 this adds nothing and is the paper's f_Θ.
    """

    def __init__(self, shape: tuple[int, ...], depth: int, identity: bool = False) -> None:
        super().__init__()
        if depth < 1:
            raise InputError(f"the depth of an affine stack must be at least 1, got {depth}.")
        self.weight = nn.Parameter(torch.ones(depth, *shape))
        self.bias = nn.Parameter(torch.zeros(depth, *shape))
        self.identity = identity and depth > 1

    @torch.no_grad()
    def restart(self) -> None:
        """Set a = 1 and b = 0 again."""
        self.weight.fill_(1)
        self.bias.zero_()

    def forward(self, h: Tensor) -> Tensor:
        *hidden, (a, b) = zip(self.weight.unbind(), self.bias.unbind())
        out = h
        for a_i, b_i in hidden:
            out = F.relu(torch.addcmul(b_i, a_i, out))
        out = torch.addcmul(b, a, out)
        return out + h.clamp(max=0) if self.identity else out


def channel_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one entry per channel, for maps (C, H, W) and for tokens (N, C).

    >>> channel_shape((64, 56, 56)), channel_shape((197, 768))
    ((64, 1, 1), (1, 768))
    """
    return (shape[0], 1, 1) if len(shape) == 3 else (1, shape[-1])
