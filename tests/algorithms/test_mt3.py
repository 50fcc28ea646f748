"""MT3's training against its formula: the inner step is written out, and autograd differentiates through it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.mt3 import clip
from itta.functional.augment import augment
from itta.functional.self_supervision import draw_views

pytestmark = pytest.mark.slow

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
Weights = dict[str, Tensor]


def features(x: Tensor, w: Weights) -> Tensor:
    z = (x - 0.5) / 0.5
    for i, stride in enumerate((1, 2, 1, 1), start=1):
        block = f"backbone.block{i}"
        z = F.conv2d(z, w[f"{block}.conv.weight"], w[f"{block}.conv.bias"], stride, padding=1).clamp(min=0)
        z = F.group_norm(z, 8, w[f"{block}.norm.weight"], w[f"{block}.norm.bias"])
    return z.mean((2, 3))


def mlp(name: str, z: Tensor, w: Weights) -> Tensor:
    z = (z @ w[f"{name}.0.weight"].T + w[f"{name}.0.bias"]).clamp(min=0)
    return z @ w[f"{name}.2.weight"].T + w[f"{name}.2.bias"]


def byol(views: Tensor, w: Weights) -> Tensor:
    n = len(views) // 2
    v = [mlp("projector", features(view[None], w), w) for view in views]
    cosines = []
    for i in range(2 * n):
        q, target = mlp("predictor", v[i], w), v[(i + n) % (2 * n)].detach()
        cosines.append((q * target).sum() / (q.norm() * target.norm()))
    return sum(2 - 2 * c for c in cosines[:n]) / n + sum(2 - 2 * c for c in cosines[n:]) / n


def task_losses(model: Algorithm, x: Tensor, y: Tensor, cross_entropy: Any) -> tuple[Tensor, Tensor]:
    """Take the inner step over all weights, and compute the outer loss with the new weights."""
    hp, w = model.hp, dict(model.named_parameters())
    inner = byol(augment(torch.cat([x, x]), draw_views(len(x))), w)
    gradients = torch.autograd.grad(inner, list(w.values()), create_graph=True, allow_unused=True)
    stepped = {}
    for (name, p), g in zip(w.items(), gradients):
        if g is None:
            stepped[name] = p
            continue
        g = g.detach() if hp.mt3_first_order else g
        length = (g**2).sum().sqrt()
        stepped[name] = p - hp.mt3_inner_lr * (g * hp.mt3_clip / length if length > hp.mt3_clip else g)
    p = hp.resnet_dropout
    z = features(x, stepped)
    z = z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
    return cross_entropy(z @ stepped["head.weight"].T + stepped["head.bias"], y), inner


SMALL = {"mt3_width": 6, "mt3_dim": 4, "mt3_inner_lr": 0.5}


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((3, 3, 3), {}),
        ((4, 3, 2), {"mt3_weight": 2.0}),
        ((3, 2), {"mt3_first_order": True}),
        ((3, 2), {"mt3_clip": 0.01}),
        ((3, 2), {"mt3_clip": 0.01, "mt3_first_order": True}),
        ((3, 2), {"resnet_dropout": 0.5}),
        ((1,), {}),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...], settings: Any, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        losses = [task_losses(model, x, y, cross_entropy) for x, y in batches]
        total = sum(loss + model.hp.mt3_weight * inner for loss, inner in losses) / len(losses)
        parameters = list(model.parameters())
        state.adam.step(parameters, torch.autograd.grad(total, parameters))
        loss, inner = (torch.stack(terms).mean().item() for terms in zip(*losses))
        return {"loss": loss, "byol": inner}

    run = assert_matches_naive("mt3", naive, sizes=sizes, **(SMALL | settings))
    torch.testing.assert_close(dict(run.algorithm.state_dict()), dict(run.model.state_dict()), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("longest", [1e-2, 10.0])
def test_second_derivative(longest: float, build: Build, toy_batches: Batches) -> None:
    """Compare the gradient of an update with finite differences of the outer loss."""
    algorithm = build("mt3", **SMALL, lr=0.0, mt3_clip=longest).double()
    batches = [(x.double(), y) for x, y in toy_batches(0, n=2)]
    wanted = ("backbone.block1.norm.weight", "backbone.block4.norm.bias", "projector.0.bias", "predictor.2.bias")
    parameters = tuple(algorithm.get_parameter(name) for name in wanted)

    def outer(*_: Tensor) -> Tensor:
        torch.manual_seed(0)
        losses = [algorithm.task_losses(x, y) for x, y in batches]
        return sum(loss for loss, _ in losses)

    def at_fixed_targets(*_: Tensor) -> Tensor:  # finite differences do not respect the stop-gradient
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("itta.algorithms.mt3.byol", lambda q, v: (q - targets).square().sum())
            return outer()

    targets = torch.randn(4, SMALL["mt3_dim"], dtype=torch.double)
    assert torch.autograd.gradcheck(at_fixed_targets, parameters, atol=1e-6)
    torch.manual_seed(0)
    algorithm.update(batches)
    gradient_of_update = [p.grad.clone() for p in parameters]
    torch.manual_seed(0)
    total = sum(loss + algorithm.hp.mt3_weight * inner for loss, inner in (algorithm.task_losses(*b) for b in batches))
    expected = [g / len(batches) for g in torch.autograd.grad(total, parameters)]
    assert all(g.any() for g in expected)
    torch.testing.assert_close(gradient_of_update, expected, rtol=1e-9, atol=1e-12)


def test_first_order_leaves_the_projector_to_the_byol_loss(build: Build, toy_batches: Batches) -> None:
    """CE depends on the projector only through the inner step."""
    moved = {}
    for first_order in (True, False):
        algorithm = build("mt3", **SMALL, mt3_weight=0.0, mt3_first_order=first_order)
        torch.manual_seed(0)
        algorithm.update(toy_batches(0))
        moved[first_order] = bool(algorithm.projector[0].weight.grad.any())
    assert moved == {True: False, False: True}


def test_live_batch_normalisation(trained: Callable[..., Algorithm]) -> None:
    model = trained("mt3", batch_norm=True)
    assert all(t.isfinite().all() for t in model.state_dict().values())
    assert model.backbone.block1[1].num_batches_tracked == 2 * 2 * 5  # two passes of two tasks in five steps


def test_a_long_gradient_is_shortened_and_others_kept() -> None:
    g = torch.tensor([3.0, 4.0])
    assert torch.equal(clip(g, 10.0), g)
    torch.testing.assert_close(clip(g, 1.0), torch.tensor([0.6, 0.8]))
    zero = torch.zeros(2, requires_grad=True)
    (d,) = torch.autograd.grad(clip(zero, 1.0).sum(), zero)
    assert torch.equal(d, torch.ones(2))
