"""SD against its formula: one pass per image, the logits' squares summed one by one."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 5, 1), (6,)])
@pytest.mark.parametrize("reg", [0.1, 30.0])
def test_three_updates(
    reg: float, sizes: Sequence[int], assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        images = [(image[None], label[None]) for x, y in batches for image, label in zip(x, y)]
        loss, penalty = torch.zeros(()), torch.zeros(())
        for x, y in images:
            logits = model.head(model.backbone(x))
            loss = loss + cross_entropy(logits, y) / len(images)
            penalty = penalty + sum(o * o for o in logits[0]) / (len(images) * 3)
        state.adam.step(parameters, torch.autograd.grad(loss + reg * penalty, parameters))
        return {"loss": loss.item(), "penalty": penalty.item()}

    assert_matches_naive("sd", naive, sizes=sizes, sd_reg=reg)


@pytest.mark.slow
def test_the_gradient_of_the_penalty(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]], cross_entropy: Any
) -> None:
    """For the bias of class k it is λ·2·mean(o_k)/classes: the penalty also acts on the bias."""
    algorithm = build("sd", sd_reg=5.0).double()
    batches = [(x.double(), y) for x, y in toy_batches(0, n=4)]
    logits, y = algorithm.predict(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])
    plain = torch.autograd.grad(cross_entropy(logits, y), algorithm.head.bias, retain_graph=True)[0]
    got = torch.autograd.grad(algorithm.objective(batches)[0], algorithm.head.bias)[0]
    torch.testing.assert_close(got - plain, 5.0 * 2 * logits.detach().mean(0) / 3)
