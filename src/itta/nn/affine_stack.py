"""The dimension-wise stack of ITTA: f_w, which shapes the consistency loss, and f_Θ, which adapts after a block.

Layers ReLU(a∘h + b) with a = 1 and b = 0 at the start; the last layer is affine only, or half of its range would be
dead (the paper's text puts a ReLU there, its released code does not). Any depth ≥ 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.errors import InputError


class AffineStack(nn.Module):
    """h ↦ a_m∘…ReLU(a_1∘h + b_1)… + b_m, entry by entry.

    With ``identity`` the module starts as the identity for features of either sign, bit for bit: what the first ReLU
    takes away at the start, min(h, 0), is handed back. For h ≥ 0 this adds nothing and is the paper's f_Θ.
    """

    def __init__(self, shape: tuple[int, ...], depth: int, identity: bool = False) -> None:
        super().__init__()
        if depth < 1:
            raise InputError(f"an affine stack needs a depth of at least 1, got {depth}.")
        self.weight = nn.Parameter(torch.ones(depth, *shape))
        self.bias = nn.Parameter(torch.zeros(depth, *shape))
        self.identity = identity and depth > 1

    @torch.no_grad()
    def restart(self) -> None:
        """Back to a = 1, b = 0."""
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
    """One entry per channel, for maps (C, H, W) and for tokens (N, C).

    >>> channel_shape((64, 56, 56)), channel_shape((197, 768))
    ((64, 1, 1), (1, 768))
    """
    return (shape[0], 1, 1) if len(shape) == 3 else (1, shape[-1])
