"""SelfReg against its formula: distances image by image, the projector's batch normalisation written out."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.selfreg import SelfRegDraw, draw_selfreg, permute_within, projector

FEATURES = {"selfreg_variant": "features"}
LEARNED = {"selfreg_train_projector": True}


def batch_norm(z: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    n = len(z)
    mean = sum(z) / n
    var = sum((row - mean) ** 2 for row in z) / n
    with torch.no_grad():
        norm.running_mean.mul_(0.9).add_(0.1 * mean)
        norm.running_var.mul_(0.9).add_(0.1 * var * n / (n - 1))
        norm.num_batches_tracked += 1
    return (z - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias


def project(model: Algorithm, z: Tensor) -> Tensor:
    linears = [m for m in model.projector if isinstance(m, nn.Linear)]
    norms = [m for m in model.projector if isinstance(m, nn.BatchNorm1d)]
    assert [m.out_features for m in linears] == [32, 32, 16]
    for i, (linear, norm) in enumerate(zip(linears, norms, strict=True)):
        z = batch_norm(z @ linear.weight.T + linear.bias, norm)
        z = z.clamp(min=0) if i < 2 else z
    return z


def distance(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Return the mean square over all images and entries."""
    return sum(((u - v) ** 2).sum() for u, v in zip(a, b)) / sum(len(u) for u in a)


def naive_loss(model: Algorithm, batches: list[Batch], draw: SelfRegDraw, cross_entropy: Any) -> Tensor:
    y = torch.cat([y for _, y in batches])
    z = torch.cat([model.backbone(x) for x, _ in batches])
    p = model.hp.resnet_dropout
    z = z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
    o = model.head(z)
    ce = cross_entropy(o, y)
    a, b = draw.a.tolist(), draw.b.tolist()
    if model.hp.selfreg_variant == "features":
        return ce + 0.3 * distance(list(z), [z[i] for i in a])
    v, lam = project(model, z), float(draw.lam)
    one = distance(list(o), [o[i] for i in a]) + 0.3 * distance(list(z), [v[i] for i in a])
    two = distance(list(o), [lam * o[i] + (1 - lam) * o[j] for i, j in zip(a, b)])
    two = two + 0.3 * distance(list(z), [lam * v[i] + (1 - lam) * v[j] for i, j in zip(a, b)])
    return ce + min(ce.item(), 1.0) * (lam * one + (1 - lam) * two)


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((6, 6, 6), {}),
        ((6, 5, 4), LEARNED),
        ((6, 5, 4), FEATURES),
        ((6, 5), {"resnet_dropout": 0.5}),
        ((8,), {}),
        ((1, 1, 1), {}),
        ((1, 1), LEARNED),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...], settings: Any, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        if model.hp.selfreg_train_projector:
            parameters += model.projector.parameters()
        draw = draw_selfreg(torch.cat([y for _, y in batches]))
        loss = naive_loss(model, batches, draw, cross_entropy)
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    run = assert_matches_naive("selfreg", naive, sizes=sizes, **settings)
    torch.testing.assert_close(dict(run.algorithm.state_dict()), dict(run.model.state_dict()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_the_penalty_is_scaled_by_a_small_cross_entropy(
    bias: float, build: Callable[..., Algorithm], cross_entropy: Any
) -> None:
    """There is one class, and the head's bias makes it likely. So the scale is the cross-entropy, as a constant."""
    algorithm = build("selfreg").double()
    with torch.no_grad():
        algorithm.head.bias[1] += bias
    parameters = [p for p in algorithm.parameters() if p.requires_grad]
    batches = [(torch.rand(4, 3, 16, 16, dtype=torch.double), torch.ones(4, dtype=torch.long)) for _ in range(2)]
    y = torch.ones(8, dtype=torch.long)
    assert (cross_entropy(algorithm.predict(torch.cat([x for x, _ in batches])), y) < 0.5) == (bias > 0)
    torch.manual_seed(0)
    loss, _ = algorithm.objective(batches)
    gradients = torch.autograd.grad(loss, parameters)
    torch.manual_seed(0)
    expected = naive_loss(algorithm, batches, draw_selfreg(y), cross_entropy)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-9, atol=1e-12)


def test_the_projector_stays_as_drawn_but_its_statistics_move(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm = build("selfreg", lr=1e-2)
    before = {k: v.clone() for k, v in algorithm.projector.state_dict().items()}
    algorithm.update(toy_batches(0))
    for key, value in algorithm.projector.state_dict().items():
        statistic = "running" in key or "tracked" in key
        assert torch.equal(value, before[key]) != statistic, key


@pytest.mark.parametrize(("dim", "width"), [(512, 1024), (2048, 2048)])
def test_width_of_the_projector(dim: int, width: int) -> None:
    with torch.device("meta"):
        linears = [m for m in projector(dim) if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [(dim, width), (width, width), (width, dim)]


def test_partners_are_a_fair_permutation_within_the_class() -> None:
    y = torch.tensor([2, 0, 2, 1, 2])
    seen: Counter[tuple[int, ...]] = Counter()
    torch.manual_seed(0)
    for _ in range(300):
        partner = permute_within(y)
        assert torch.equal(y[partner], y)
        seen[tuple(partner.tolist())] += 1
    assert len(seen) == 6
    assert min(seen.values()) > 25
    assert all(sorted(partner) == [0, 1, 2, 3, 4] for partner in seen)


def test_the_draw_is_two_independent_partners_and_a_beta_share() -> None:
    torch.manual_seed(0)
    draws = [draw_selfreg(torch.tensor([0, 0])) for _ in range(1000)]
    lam = torch.stack([d.lam for d in draws])
    assert lam.mean().item() == pytest.approx(1 / 2, abs=0.04)
    assert lam.var().item() == pytest.approx(1 / 8, abs=0.01)
    pairs = Counter((d.a[0].item(), d.b[0].item()) for d in draws)
    assert min(pairs[a, b] for a in (0, 1) for b in (0, 1)) > 180
