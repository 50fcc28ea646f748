"""Gradients as one vector over several tensors: their statistics, and the alignment of two gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from itta.functional.transfers import fetch, widen


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
    mean = widen(torch.stack([g.sum() for g in gs])).sum() / n
    squares = dot(gs, gs)
    return Moments(mean, ((squares - n * mean**2) / (n - 1)).clamp(min=0).sqrt(), n)


def dot(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    """Return ⟨x, y⟩ over several tensors. `sum` adds in pairs, which is more exact than a plain dot product."""
    return widen(torch.stack([(x * y).sum() for x, y in zip(xs, ys)])).sum()


class Alignment(NamedTuple):
    """L_align = mean((ĝ_main − ĝ_wcont)²) and its derivative, which is affine in the two gradients. All on the host."""

    loss: Tensor
    cosine: Tensor
    main: Tensor  # v = ∂L_align/∂g_wcont = main·g_main + wcont·g_wcont + shift
    wcont: Tensor
    shift: Tensor

    def direction(self, g_main: Tensor, g_wcont: Tensor) -> Tensor:
        """Return v for one pair of gradient tensors."""
        v = g_main * float(self.main)
        return v.add_(g_wcont, alpha=float(self.wcont)).add_(float(self.shift))


def alignment_statistics(g_main: Sequence[Tensor], g_wcont: Sequence[Tensor]) -> Tensor:
    """Return the mean and deviation of both gradients and their product ⟨g_main, g_wcont⟩, [5]."""
    a, b = moments(g_main), moments(g_wcont)
    return torch.stack([a.mean, a.std, b.mean, b.std, dot(g_main, g_wcont)])


def alignment(
    g_main: Sequence[Tensor], g_wcont: Sequence[Tensor], statistics: Tensor | None = None
) -> Alignment | None:
    """Compute Eq. 5 with ĝ = (g − mean g)/std g over all entries, both statistics held constant.

    Return None if a gradient is constant, for example all zero: there is nothing to align. ``statistics`` is the result
    of `alignment_statistics` on the host, if the caller has fetched it together with other values.
    """
    if statistics is None:
        (statistics,) = fetch(alignment_statistics(g_main, g_wcont))
    mean_a, std_a, mean_b, std_b, product = statistics
    if not (torch.isfinite(std_a) and torch.isfinite(std_b)) or std_a == 0 or std_b == 0:
        return None
    n = sum(g.numel() for g in g_main)
    cosine = (product - n * mean_a * mean_b) / ((n - 1) * std_a * std_b)
    loss = 2 * (n - 1) / n * (1 - cosine)
    scale = -2 / (n * std_b)
    return Alignment(loss, cosine, scale / std_a, -scale / std_b, -scale * (mean_a / std_a - mean_b / std_b))
