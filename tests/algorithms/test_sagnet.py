"""SagNet against its formula: three passes per update, styles computed one vector at a time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.sagnet import SagDraw, draw_sag


def style(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of one vector's entries."""
    mean = sum(z) / len(z)
    return mean, sum((v - mean) ** 2 for v in z) / (len(z) - 1)


def content(z: Tensor) -> Tensor:
    mean, var = style(z)
    return (z - mean) / (var + 1e-5).sqrt()


def style_randomised(z: Tensor, draw: SagDraw) -> Tensor:
    out = []
    for i, (alpha, j) in enumerate(zip(draw.alpha, draw.partner)):
        (mean, var), (other_mean, other_var) = style(z[i]), style(z[j])
        var = alpha * var + (1 - alpha) * other_var
        out.append(content(z[i]) * (var + 1e-5).sqrt() + alpha * mean + (1 - alpha) * other_mean)
    return torch.stack(out)


def content_randomised(z: Tensor, draw: SagDraw) -> Tensor:
    out = []
    for i, j in enumerate(draw.partner):
        mean, var = style(z[i])
        out.append(content(z[j].detach()) * (var + 1e-5).sqrt() + mean)
    return torch.stack(out)


def features(model: Algorithm, batches: list[Batch]) -> Tensor:
    z = torch.cat([model.backbone(x) for x, _ in batches])
    p = model.hp.resnet_dropout
    return z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((6, 5, 4), {}),
        ((4, 4, 4), {"sag_w_adv": 5.0}),
        ((4, 3), {"sag_w_adv": 1.0, "resnet_dropout": 0.5}),
        ((6,), {"sag_w_adv": 1.0}),
        ((1,), {"sag_w_adv": 1.0}),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...], settings: Any, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        y, n, like = torch.cat([y for _, y in batches]), sum(sizes), batches[0][0]
        f, c, s = (list(m.parameters()) for m in (model.backbone, model.head, model.style_head))

        z = features(model, batches)
        one = cross_entropy(model.head(style_randomised(z, draw_sag(n, like))), y)
        state.adam.step(f + c, torch.autograd.grad(one, f + c))

        z = features(model, batches)
        two = cross_entropy(model.style_head(content_randomised(z, draw_sag(n, like))), y)
        state.adam.step(s, torch.autograd.grad(two, s))

        z = features(model, batches)
        logits = model.style_head(content_randomised(z, draw_sag(n, like)))
        uniform = sum(cross_entropy(logits, torch.full((n,), k)) for k in range(3)) / 3
        three = model.hp.sag_w_adv * uniform
        state.adam.step(f, torch.autograd.grad(three, f))
        return {"loss_cont": one.item(), "loss_style": two.item(), "loss_adv": three.item()}

    run = assert_matches_naive("sagnet", naive, sizes=sizes, **settings)
    torch.testing.assert_close(
        dict(run.algorithm.named_parameters()), dict(run.model.named_parameters()), rtol=1e-9, atol=1e-9
    )


def test_a_draw_is_a_share_and_a_partner_for_each_image() -> None:
    torch.manual_seed(0)
    alpha, partner = draw_sag(500, torch.zeros(1, dtype=torch.double))
    assert alpha.shape == (500, 1)
    assert alpha.dtype == torch.double
    assert 0 <= alpha.min() < 0.05 < 0.95 < alpha.max() < 1
    assert torch.equal(partner.sort().values, torch.arange(500))


def test_features_without_variance_stay_finite(build: Callable[..., Algorithm]) -> None:
    """If the last normalisation gives zeros, every feature vector is constant and its variance is 0."""
    algorithm = build("sagnet", lr=1e-2, sag_w_adv=10.0)
    torch.nn.init.zeros_(algorithm.backbone.block4.norm.weight)
    batches = [(torch.full((2, 3, 16, 16), 0.5), torch.ones(2, dtype=torch.long))] * 2
    for _ in range(3):
        assert all(abs(v) < float("inf") for v in algorithm.update(batches).values())
    assert all(p.isfinite().all() for p in algorithm.parameters())
