"""RSC against its formula: gradients, quantiles and masks one image at a time."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.nn.small_cnn import SmallCNN


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the sorted values."""
    ordered, place = sorted(values), q * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (place - math.floor(place)) * (high - low)


def probability(logits: Tensor, label: Tensor) -> float:
    return (logits[label].exp() / logits.exp().sum()).item()


def masks(head: nn.Module, z: Tensor, y: Tensor, f: float, b: float) -> Tensor:
    kept, falls = [], []
    for z_i, label in zip(z.detach(), y):
        z_i = z_i.clone().requires_grad_()
        logits = head(z_i)
        g = torch.autograd.grad(logits[label], z_i)[0].tolist()
        keep = torch.tensor([float(v < quantile(g, 1 - f)) for v in g], dtype=z.dtype)
        kept.append(keep)
        falls.append(probability(logits, label) - probability(head(z_i * keep), label))
    threshold = quantile(falls, 1 - b)
    return torch.stack([torch.ones_like(m) if fall < threshold else m for m, fall in zip(kept, falls)])


def features(model: Algorithm, batches: list[Batch]) -> Tensor:
    z = torch.cat([model.backbone(x) for x, _ in batches])
    p = model.hp.resnet_dropout
    return z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z


@pytest.mark.parametrize(
    ("sizes", "f", "b", "dropout"),
    [
        ((6, 6, 6), 0.3, 0.4, 0.0),
        ((6, 5, 4), 0.45, 0.5, 0.0),
        ((6, 5, 4), 0.0, 0.0, 0.0),
        ((6, 5), 0.3, 0.2, 0.5),
        ((5,), 0.5, 0.3, 0.0),
        ((1,), 0.5, 0.5, 0.0),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...],
    f: float,
    b: float,
    dropout: float,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.muted = naive_adam(1e-2, 1e-2), []
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        z, y = features(model, batches), torch.cat([y for _, y in batches])
        mask = masks(model.head, z, y, f, b)
        state.muted.append((mask == 0).sum(1))
        loss = cross_entropy(model.head(z * mask), y)
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    run = assert_matches_naive(
        "rsc", naive, sizes=sizes, rsc_f_drop_factor=f, rsc_b_drop_factor=b, resnet_dropout=dropout
    )
    for muted in run.state.muted:
        images = sum(n > 0 for n in muted.tolist())
        assert 1 <= images <= max(1, math.ceil(b * len(muted)))
        assert 1 <= muted.max() <= max(1, math.ceil(f * 16))
        if f == b == 0:
            assert muted.sum() == 1


def test_a_head_that_is_not_linear(build: Callable[..., Algorithm], cross_entropy: Any) -> None:
    """With such a head the gradient of a logit depends on the image. The mask is still constant in the loss."""

    def make_head(n_in: int, n_out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out))

    task = Task(("a", "b", "c"), ("one", "two"), 16, lambda: SmallCNN(width=8), make_head)
    algorithm = build("rsc", task, rsc_f_drop_factor=0.3, rsc_b_drop_factor=0.4).double()
    batches = [(torch.rand(4, 3, 16, 16, dtype=torch.double), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    loss, _ = algorithm.objective(batches)
    z, y = features(algorithm, batches), torch.cat([y for _, y in batches])
    expected = cross_entropy(algorithm.head(z * masks(algorithm.head, z, y, 0.3, 0.4)), y)
    parameters = list(algorithm.parameters())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), rtol=1e-9, atol=1e-12
    )


def test_equal_images_are_all_muted(build: Callable[..., Algorithm]) -> None:
    """If all images lose the same, none is strictly below the threshold."""
    algorithm = build("rsc", lr=1e-2).double()
    x, y = torch.full((4, 3, 16, 16), 0.3, dtype=torch.double), torch.ones(4, dtype=torch.long)
    mask = algorithm.mask(algorithm.backbone(x).detach(), y)
    assert torch.equal(mask, mask[:1].expand_as(mask))
    assert mask.min() == 0
    for _ in range(3):
        assert abs(algorithm.update([(x, y)])["loss"]) < float("inf")
    assert all(p.isfinite().all() for p in algorithm.parameters())
