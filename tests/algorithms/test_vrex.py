"""VREx against its formula: risks one domain after another, the variance written out."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


@pytest.mark.parametrize("anneal", [0, 1, 10])
@pytest.mark.parametrize("reference", [False, True])
def test_three_updates(
    anneal: int, reference: bool, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.step = naive_adam(1e-2, 1e-2), 0
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        risks = [cross_entropy(model.head(model.backbone(x)), y) for x, y in batches]
        mean = sum(risks) / len(risks)
        variance = sum((r - mean) ** 2 for r in risks) / len(risks)
        loss = mean + (7.0 if state.step >= anneal else 1.0) * variance
        if state.step == anneal:
            state.adam.restart()
        state.step += 1
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        nll = risks[-1] if reference else mean
        return {"loss": loss.item(), "nll": nll.item(), "penalty": variance.item()}

    assert_matches_naive("vrex", naive, vrex_lambda=7.0, vrex_penalty_anneal_iters=anneal, reference=reference)
