"""Gradients as vectors over several tensors: their statistics, and the alignment of two of them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    mean: Tensor
    std: Tensor
    n: int


def moments(gs: Sequence[Tensor]) -> Moments:
    """Mean and (unbiased) deviation over all entries of all tensors, in double precision.

    >>> m = moments([torch.tensor([1.0, 2.0]), torch.tensor([[6.0]])])
    >>> m.mean.item(), m.std.item(), m.n
    (3.0, 2.6457513110645907, 3)
    """
    n = sum(g.numel() for g in gs)
    mean = torch.stack([g.sum(dtype=torch.float64) for g in gs]).sum() / n
    squares = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) ** 2 for g in gs]).sum()
    return Moments(mean, ((squares - n * mean**2) / (n - 1)).clamp(min=0).sqrt(), n)


class Alignment(NamedTuple):
    """L_align = mean((ĝ_main − ĝ_wcont)²) and how it depends, affinely, on the two gradients."""

    loss: Tensor
    cosine: Tensor
    main: Tensor  # v = ∂L_align/∂g_wcont = main·g_main + wcont·g_wcont + shift
    wcont: Tensor
    shift: Tensor

    def direction(self, g_main: Tensor, g_wcont: Tensor) -> Tensor:
        """v for one pair of gradient tensors."""
        return (g_main * float(self.main)).add_(g_wcont, alpha=float(self.wcont)).add_(float(self.shift))


def alignment(g_main: Sequence[Tensor], g_wcont: Sequence[Tensor]) -> Alignment | None:
    """Eq. 5 with ĝ = (g − mean g)/std g over all entries, both statistics held constant.

    Nothing to align where a gradient is constant (all zero, say): None.
    """
    a, b = moments(g_main), moments(g_wcont)
    if not (torch.isfinite(a.std) and torch.isfinite(b.std)) or a.std == 0 or b.std == 0:
        return None
    dots = torch.stack([torch.vdot(x.flatten(), y.flatten()).double() for x, y in zip(g_main, g_wcont)]).sum()
    n = a.n
    cosine = (dots - n * a.mean * b.mean) / ((n - 1) * a.std * b.std)
    loss = 2 * (n - 1) / n * (1 - cosine)
    scale = -2 / (n * b.std)
    return Alignment(loss, cosine, scale / a.std, -scale / b.std, -scale * (a.mean / a.std - b.mean / b.std))
