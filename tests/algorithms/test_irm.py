"""IRM against its formula: autograd computes the derivative for a factor on the logits, one half-batch at a time."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.irm import scale_derivative, split_square


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 5, 4), (1, 2, 3), (6,)])
@pytest.mark.parametrize("anneal", [0, 1, 10])
def test_three_updates(
    anneal: int, sizes: Sequence[int], assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def derivative(logits: Tensor, y: Tensor) -> Tensor | float:
        if len(y) == 0:
            return 0.0
        scale = torch.ones((), dtype=torch.double, requires_grad=True)
        return torch.autograd.grad(cross_entropy(scale * logits, y), scale, create_graph=True)[0]

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.step = naive_adam(1e-2, 1e-2), 0
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        nll, penalty = torch.zeros(()), torch.zeros(())
        for x, y in batches:
            logits = model.head(model.backbone(x))
            nll = nll + cross_entropy(logits, y) / len(batches)
            product = derivative(logits[0::2], y[0::2]) * derivative(logits[1::2], y[1::2])
            penalty = penalty + product / len(batches)
        loss = nll + (7.0 if state.step >= anneal else 1.0) * penalty
        if state.step == anneal:
            state.adam.restart()
        state.step += 1
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item(), "nll": nll.item(), "penalty": penalty.item()}

    assert_matches_naive("irm", naive, sizes=sizes, irm_lambda=7.0, irm_penalty_anneal_iters=anneal)


@pytest.mark.parametrize("n", [2, 5])
def test_the_penalty_is_differentiated_right(n: int) -> None:
    """Compare its gradients for features, weight and bias with finite differences."""
    g = torch.Generator().manual_seed(0)
    z, weight, bias = (
        torch.randn(shape, generator=g, dtype=torch.double, requires_grad=True) for shape in [(n, 4), (3, 4), (3,)]
    )
    y = torch.randint(3, (n,), generator=g)
    assert torch.autograd.gradcheck(lambda *zwb: split_square(scale_derivative(F.linear(*zwb), y)), (z, weight, bias))


def test_one_image_per_domain_has_no_penalty(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm = build("irm", irm_lambda=1e5, irm_penalty_anneal_iters=0)
    logs = algorithm.update(toy_batches(0, n=1))
    assert logs["penalty"] == 0
    assert logs["loss"] == logs["nll"] > 0
    assert all(p.isfinite().all() for p in algorithm.parameters())
