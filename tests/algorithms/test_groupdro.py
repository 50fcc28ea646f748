"""GroupDRO against its formula: one pass per domain, weights multiplied and then normalised."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 5, 4), (8,)])
@pytest.mark.parametrize("eta", [1e-2, 10.0])
def test_three_updates(
    eta: float, sizes: Sequence[int], assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.q = naive_adam(1e-2, 1e-2), [1.0] * len(batches)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        risks = [cross_entropy(model.head(model.backbone(x)), y) for x, y in batches]
        state.q = [q * (eta * risk.detach()).exp().item() for q, risk in zip(state.q, risks)]
        state.q = [q / sum(state.q) for q in state.q]
        loss = sum(q * risk for q, risk in zip(state.q, risks))
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    ran = assert_matches_naive("groupdro", naive, sizes=sizes, groupdro_eta=eta)
    assert ran.algorithm.q.tolist() == pytest.approx(ran.state.q, rel=1e-9)


def test_no_loss_is_too_large(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]], cross_entropy: Any
) -> None:
    """exp(η·L) is infinite in single precision; still the weight goes to the worse domain."""
    algorithm = build("groupdro", groupdro_eta=1e4)
    batches = toy_batches(0)
    risks = [cross_entropy(algorithm.predict(x), y).item() for x, y in batches]
    logs = algorithm.update(batches)
    assert logs["loss"] == pytest.approx(max(risks), rel=1e-5)
    assert algorithm.q.tolist() == pytest.approx([float(r == max(risks)) for r in risks])
    assert all(p.isfinite().all() for p in algorithm.parameters())
