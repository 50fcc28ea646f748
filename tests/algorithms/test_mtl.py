"""MTL against its formula: one pass per domain, and its running mean next to the features of each image."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("ema", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("sizes", [(6, 5, 4), (6,)])
def test_three_updates(
    sizes: Sequence[int],
    ema: float,
    reference: bool,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def noise(n: int, d: int) -> Tensor:
        """Draw noise for all domains at once."""
        return torch.randn(n, d, dtype=torch.double)

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        d = model.backbone.dim
        if not hasattr(state, "adam"):
            state.adam, state.memory = naive_adam(1e-2, 1e-2), [torch.zeros(d) for _ in batches]
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        rows = iter(noise(sum(sizes), d)) if reference else None
        loss = torch.zeros(())
        for e, (x, y) in enumerate(batches):
            z = model.backbone(x)
            mean = ema * sum(z) / len(z) + (1 - ema) * state.memory[e]
            state.memory[e] = mean.detach()
            logits = [model.head(torch.cat([row, mean if rows is None else next(rows)])) for row in z]
            loss = loss + cross_entropy(torch.stack(logits), y)
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    def predict(model: Algorithm, x: Tensor) -> Tensor:
        z = model.backbone(x)
        context = noise(*z.shape) if reference else [sum(z) / len(z)] * len(z)
        return torch.stack([model.head(torch.cat([row, c])) for row, c in zip(z, context)])

    ran = assert_matches_naive("mtl", naive, predict, sizes=sizes, mtl_ema=ema, reference=reference)
    torch.testing.assert_close(ran.algorithm.embeddings, torch.stack(ran.state.memory), rtol=1e-9, atol=1e-9)


def test_the_references_running_mean_has_no_effect(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    runs = [build("mtl", lr=1e-2, mtl_ema=ema, reference=True) for ema in (0.5, 1.0)]
    for algorithm in runs:
        torch.manual_seed(0)
        algorithm.update(toy_batches(0))
    assert all(torch.equal(p, q) for p, q in zip(*(a.parameters() for a in runs)))


def test_a_lone_image_is_its_own_context(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm = build("mtl").eval()
    x = toy_batches(0)[0][0]
    z = algorithm.backbone(x[:1])
    torch.testing.assert_close(algorithm.predict(x[:1]), algorithm.head(torch.cat([z, z], 1)))
    assert not torch.allclose(algorithm.predict(x[:1]), algorithm.predict(x)[:1])


def test_one_image_per_domain(build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]) -> None:
    algorithm = build("mtl")
    assert 0 < algorithm.update(toy_batches(0, n=1))["loss"] < float("inf")
    assert all(p.isfinite().all() for p in algorithm.parameters())
