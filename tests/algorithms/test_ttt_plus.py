"""TTT++'s training against its formula: the contrastive loss pair by pair, the moments row by row."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment
from itta.functional.self_supervision import draw_views

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


def contrast(h: Tensor, temperature: float) -> Tensor:
    n = len(h) // 2
    u = [row / row.norm() for row in h]
    terms = []
    for i in range(2 * n):
        other = (i + n) % (2 * n)
        powers = {k: ((u[i] * u[k]).sum() / temperature).exp() for k in range(2 * n) if k != i}
        terms.append(-(powers[other] / sum(powers.values())).log())
    return sum(terms) / (2 * n)


def project(model: Algorithm, z: Tensor) -> Tensor:
    first, _, last = model.contrastive_head
    return (z @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias


@torch.no_grad()
def note(running: Any, z: Tensor, window: int) -> None:
    """Add a batch to the first and second moments with its share, and compute the covariance from them."""
    running.steps += 1
    share = max(1 / int(running.steps), 1 / window)
    second = running.covariance + torch.outer(running.mean, running.mean)
    second = (1 - share) * second + share * sum(torch.outer(row, row) for row in z) / len(z)
    running.mean.copy_((1 - share) * running.mean + share * sum(z) / len(z))
    running.covariance.copy_(second - torch.outer(running.mean, running.mean))
    fourth = sum(((row - running.mean) ** 2).sum() ** 2 for row in z) / len(z)
    running.fourth.copy_((1 - share) * running.fourth + share * fourth)


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((3, 3, 3), {}),
        ((4, 3, 2), {"simclr_weight": 0.3, "simclr_temperature": 0.1, "simclr_dim": 5}),
        ((3, 2), {"moments_window": 2}),
        ((4, 3), {"resnet_dropout": 0.5}),
        ((1,), {}),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...], settings: Any, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        views = augment(torch.cat([x, x]), draw_views(len(x)))
        z = model.backbone(x)
        p = model.hp.resnet_dropout
        dropped = z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
        loss = cross_entropy(model.head(dropped), y)
        contrastive = contrast(project(model, model.backbone(views)), model.hp.simclr_temperature)
        note(model.feature_moments, z.detach(), model.hp.moments_window)
        note(model.projection_moments, project(model, z).detach(), model.hp.moments_window)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss + model.hp.simclr_weight * contrastive, parameters)
        state.adam.step(parameters, gradients)
        return {"loss": loss.item(), "contrast": contrastive.item()}

    run = assert_matches_naive("ttt++", naive, sizes=sizes, **settings)
    torch.testing.assert_close(dict(run.algorithm.state_dict()), dict(run.model.state_dict()), rtol=1e-8, atol=1e-9)


def test_the_moments_of_a_network_at_rest_are_those_of_all_its_images(build: Build, toy_batches: Batches) -> None:
    algorithm = build("ttt++", lr=0.0, resnet_dropout=0.5).double()
    steps = [[(x.double(), y) for x, y in toy_batches(step)] for step in range(10)]
    for batches in steps:
        algorithm.update(batches)
    with torch.no_grad():
        z = torch.cat([algorithm.backbone(x) for batches in steps for x, _ in batches])
        for running, rows in (
            (algorithm.feature_moments, z),
            (algorithm.projection_moments, algorithm.contrastive_head(z)),
        ):
            mean, covariance, fourth = running.moments()
            torch.testing.assert_close(mean, rows.mean(0), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(covariance, rows.T.cov(correction=0), rtol=1e-9, atol=1e-12)
            exact = (rows - mean).square().sum(1).square().mean()
            assert fourth.item() == pytest.approx(exact.item(), rel=0.3)  # about the mean at that step


def test_a_window_without_steps_is_refused(build: Build) -> None:
    with pytest.raises(InputError, match="must be at least 1 step, got 0"):
        build("ttt++", moments_window=0)
