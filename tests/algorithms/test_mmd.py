"""MMD against its formula: one pass per domain, the kernel image by image."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


def mean_kernel(a: Tensor, b: Tensor, reference: bool) -> Tensor:
    """Return the mean over all pairs of images, with pairs of an image and itself."""
    total = torch.zeros((), dtype=a.dtype)
    for u in a:
        for v in b:
            expanded = ((u * u).sum() + (v * v).sum() - 2 * (u * v).sum()).clamp(min=1e-30)
            distance = expanded if reference else ((u - v) ** 2).sum()
            total = total + sum(torch.exp(-(10.0**k) * distance) for k in range(-3, 4))
    return total / (len(a) * len(b))


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("sizes", "gamma"), [((4, 3, 2), 1.0), ((3, 3), 10.0), ((8,), 0.1)])
def test_three_updates(
    sizes: Sequence[int],
    gamma: float,
    reference: bool,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        z = [model.backbone(x) for x, _ in batches]
        risk = sum(cross_entropy(model.head(part), y) for part, (_, y) in zip(z, batches)) / len(batches)
        penalty = torch.zeros(())
        for i in range(len(z)):
            for j in range(i):
                own = mean_kernel(z[i], z[i], reference) + mean_kernel(z[j], z[j], reference)
                pair = own - 2 * mean_kernel(z[i], z[j], reference)
                penalty = penalty + pair / math.comb(len(z), 2)
        state.adam.step(parameters, torch.autograd.grad(risk + gamma * penalty, parameters))
        return {"loss": risk.item(), "penalty": penalty.item()}

    assert_matches_naive("mmd", naive, sizes=sizes, mmd_gamma=gamma, reference=reference)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_equal_images_have_no_distance(
    n: int, reference: bool, build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm, (x, y) = build("mmd", reference=reference).double(), toy_batches(0)[0]
    logs = algorithm.update([(x[:1].repeat(n, 1, 1, 1).double(), y[:1].repeat(n))] * 2)
    assert logs["penalty"] == pytest.approx(0, abs=1e-9)
    assert all(p.isfinite().all() for p in algorithm.parameters())
