"""Gradients as one vector over several tensors: their statistics, and the alignment of two gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    mean: Tensor
    std: Tensor
    n: int


def moments(gs: Sequence[Tensor]) -> Moments:
    """Return mean and (unbiased) deviation over all entries of all tensors. Sums over tensors are in double precision.

    >>> m = moments([torch.tensor([1.0, 2.0]), torch.tensor([[6.0]])])
    >>> m.mean.item(), m.std.item(), m.n
    (3.0, 2.6457513110645907, 3)
    """
    n = sum(g.numel() for g in gs)
    mean = torch.stack([g.sum() for g in gs]).double().sum() / n
    squares = dot(gs, gs)
    return Moments(mean, ((squares - n * mean**2) / (n - 1)).clamp(min=0).sqrt(), n)


def dot(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    """Return ⟨x, y⟩ over several tensors. `sum` adds in pairs, which is more exact than a plain dot product."""
    return torch.stack([(x * y).sum() for x, y in zip(xs, ys)]).double().sum()


class Alignment(NamedTuple):
    """L_align = mean((ĝ_main − ĝ_wcont)²) and its derivative, which is affine in the two gradients."""

    loss: Tensor
    cosine: Tensor
    main: Tensor  # v = ∂L_align/∂g_wcont = main·g_main + wcont·g_wcont + shift
    wcont: Tensor
    shift: Tensor

    def direction(self, g_main: Tensor, g_wcont: Tensor) -> Tensor:
        """Return v for one pair of gradient tensors."""
        v = g_main * float(self.main)
        return v.add_(g_wcont, alpha=float(self.wcont)).add_(float(self.shift))


def alignment(g_main: Sequence[Tensor], g_wcont: Sequence[Tensor]) -> Alignment | None:
    """Compute Eq. 5 with ĝ = (g − mean g)/std g over all entries, both statistics held constant.

    Return None if a gradient is constant, for example all zero: there is nothing to align.
    """
    a, b = moments(g_main), moments(g_wcont)
    if not (torch.isfinite(a.std) and torch.isfinite(b.std)) or a.std == 0 or b.std == 0:
        return None
    n = a.n
    cosine = (dot(g_main, g_wcont) - n * a.mean * b.mean) / ((n - 1) * a.std * b.std)
    loss = 2 * (n - 1) / n * (1 - cosine)
    scale = -2 / (n * b.std)
    return Alignment(loss, cosine, scale / a.std, -scale / b.std, -scale * (a.mean / a.std - b.mean / b.std))
