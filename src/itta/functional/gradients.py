"""Gradients as one vector over several tensors: their statistics, and the alignment of two gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from itta.functional.transfers import fetch, widen


def total(parts: Sequence[Tensor]) -> Tensor:
    """Add up numbers in double precision."""
    return widen(torch.stack(list(parts))).sum()


def mean_and_deviation(total: Tensor, squares: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return mean and (unbiased) deviation of n values from their sum and the sum of their squares.

    >>> [float(m) for m in mean_and_deviation(torch.tensor(9.0), torch.tensor(41.0), 3)]  # 1, 2, 6
    [3.0, 2.6457512378692627]
    """
    mean = total / n
    return mean, ((squares - n * mean**2) / (n - 1)).clamp(min=0).sqrt()


def product(x: Tensor, y: Tensor, memory: Tensor) -> Tensor:
    """Return x∘y, written into ``memory`` if both lie in memory in the same plain order."""
    if not (x.is_contiguous() and y.is_contiguous() and x.dtype == y.dtype == memory.dtype):
        return x * y
    return torch.mul(x.flatten(), y.flatten(), out=memory[: x.numel()])


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
    """Return the mean and deviation of both gradients and their product ⟨g_main, g_wcont⟩, [5].

    `sum` adds in pairs, which is more exact than a plain dot product. Each pair of tensors gives all of its sums while
    it is in the processor's cache, and all products share one piece of memory: to ask the system for a new piece takes
    longer than the product.
    """
    n, memory = sum(g.numel() for g in g_main), g_main[0].new_empty(max(g.numel() for g in g_main))
    sums = [
        (a.sum(), product(a, a, memory).sum(), b.sum(), product(b, b, memory).sum(), product(a, b, memory).sum())
        for a, b in zip(g_main, g_wcont)
    ]
    sum_a, squares_a, sum_b, squares_b, both = map(total, zip(*sums))
    a, b = mean_and_deviation(sum_a, squares_a, n), mean_and_deviation(sum_b, squares_b, n)
    return torch.stack([*a, *b, both])


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
