"""Mixup against its formula: one pass per pair of domains, with the pairs of the drawn cyclic order."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.mixup import draw_mixup


@pytest.mark.parametrize("alpha", [0.2, 3.0])
@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 5, 4), (6, 4), (7,)])
def test_three_updates(
    alpha: float, sizes: Sequence[int], assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def partner(i: int, order: list[int], batches: list[Batch]) -> Batch:
        """Return the next domain of the cyclic order; for a single domain, other images of its batch."""
        if len(batches) > 1:
            return batches[order[(order.index(i) + 1) % len(order)]]
        shuffle = torch.randperm(len(batches[0][0]))
        return batches[0][0][shuffle], batches[0][1][shuffle]

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        draw, loss = draw_mixup(len(batches), alpha), torch.zeros(())
        for k, i in enumerate(draw.order.tolist()):
            lam, (x_i, y_i), (x_j, y_j) = draw.lam[k].item(), batches[i], partner(i, draw.order.tolist(), batches)
            n = min(len(x_i), len(x_j))
            mixed = torch.stack([lam * a + (1 - lam) * b for a, b in zip(x_i[:n], x_j[:n])])
            logits = model.head(model.backbone(mixed))
            pair = lam * cross_entropy(logits, y_i[:n]) + (1 - lam) * cross_entropy(logits, y_j[:n])
            loss = loss + pair / len(batches)
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    assert_matches_naive("mixup", naive, sizes=sizes, mixup_alpha=alpha)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 10.0])
def test_the_draw(alpha: float) -> None:
    """It is a permutation, and shares from Beta(α, α): below and above a half, with variance 1/(4(2α + 1))."""
    torch.manual_seed(0)
    order, lam = draw_mixup(4000, alpha)
    assert sorted(order.tolist()) == list(range(4000))
    assert order.tolist() != list(range(4000))
    assert lam.shape == (4000,)
    assert ((lam >= 0) & (lam <= 1)).all()
    assert lam.mean().item() == pytest.approx(0.5, abs=0.03)
    assert lam.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
