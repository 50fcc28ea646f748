"""CORAL against its formula: one pass per domain, covariances summed image by image."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of the means plus that of the covariances of two domains, each a mean over entries."""
    means = [sum(z) / len(z) for z in (a, b)]
    covariances = [sum(torch.outer(v - m, v - m) for v in z) / (len(z) - 1) for z, m in zip((a, b), means)]
    d = a.shape[1]
    return ((means[0] - means[1]) ** 2).sum() / d + ((covariances[0] - covariances[1]) ** 2).sum() / d**2


@pytest.mark.parametrize(
    ("sizes", "gamma", "drop"), [((6, 6, 6), 1.0, 0.0), ((6, 5, 4), 10.0, 0.0), ((2, 3), 0.1, 0.5), ((8,), 10.0, 0.0)]
)
def test_three_updates(
    sizes: Sequence[int],
    gamma: float,
    drop: float,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def features(model: Algorithm, batches: list[Batch]) -> list[Tensor]:
        """Compute features domain by domain, with one draw of dropout for all domains."""
        z = [model.backbone(x) for x, _ in batches]
        if not drop:
            return z
        kept = (torch.rand_like(torch.cat(z)) >= drop).split([len(part) for part in z])
        return [part * k / (1 - drop) for part, k in zip(z, kept)]

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        z = features(model, batches)
        risk = sum(cross_entropy(model.head(part), y) for part, (_, y) in zip(z, batches)) / len(batches)
        pairs = [distance(z[a], z[b]) for a in range(len(z)) for b in range(a + 1, len(z))]
        penalty = sum(pairs) / len(pairs)
        state.adam.step(parameters, torch.autograd.grad(risk + gamma * penalty, parameters))
        return {"loss": risk.item(), "penalty": penalty.item()}

    assert_matches_naive("coral", naive, sizes=sizes, mmd_gamma=gamma, resnet_dropout=drop)


def test_one_image_per_domain_is_refused(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    """One image has no covariance."""
    algorithm = build("coral")
    before = [p.clone() for p in algorithm.parameters()]
    with pytest.raises(InputError, match="coral needs at least 2 images per domain and step, got 1"):
        algorithm.update([toy_batches(0, n=4)[0], toy_batches(0, n=1)[1]])
    assert all(torch.equal(p, q) for p, q in zip(before, algorithm.parameters()))
    with pytest.raises(InputError, match="coral needs at least 2 images per domain and step, got 1"):
        build("coral", batch_size=1)


def test_equal_images_have_no_distance(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm, (x, y) = build("coral"), toy_batches(0)[0]
    logs = algorithm.update([(x[:1].repeat(4, 1, 1, 1), y[:1].repeat(4))] * 2)
    assert logs["penalty"] == pytest.approx(0, abs=1e-10)
    assert all(p.isfinite().all() for p in algorithm.parameters())
