"""ARM against its formula: the context network written out, contexts group by group."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.arm import context_network
from itta.algorithms.base import Batch
from itta.nn.small_cnn import SmallCNN


def batch_norm(z: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Normalise: in training by the batch's statistics, which also update the stored ones; else by the stored ones."""
    mean, var = norm.running_mean, norm.running_var
    if norm.training:
        n = z[:, 0].numel()
        mean = z.sum((0, 2, 3)) / n
        var = ((z - mean[:, None, None]) ** 2).sum((0, 2, 3)) / n
        with torch.no_grad():
            norm.running_mean.mul_(0.9).add_(0.1 * mean)
            norm.running_var.mul_(0.9).add_(0.1 * var * n / (n - 1))
            norm.num_batches_tracked += 1
    z = (z - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return z * norm.weight[:, None, None] + norm.bias[:, None, None]


def context_maps(network: nn.Module, x: Tensor) -> Tensor:
    """Return one channel for each image, at full resolution. DomainBed normalises images before any network."""
    x = (x - 0.5) / 0.5
    convs = [m for m in network if isinstance(m, nn.Conv2d)]
    norms = [m for m in network if isinstance(m, nn.BatchNorm2d)]
    for conv, norm in zip(convs[:-1], norms, strict=True):
        x = batch_norm(F.conv2d(x, conv.weight, conv.bias, padding=2), norm).clamp(min=0)
    return F.conv2d(x, convs[-1].weight, convs[-1].bias, padding=2)


def predict(model: Algorithm, x: Tensor) -> Tensor:
    """Return the logits of the images, group by group."""
    b = model.hp.batch_size
    b = b if len(x) % b == 0 else len(x)
    maps, logits = context_maps(model.context, x), []
    for start in range(0, len(x), b):
        context = sum(maps[start : start + b]) / b
        for image in x[start : start + b]:
            logits.append(model.head(model.backbone(torch.cat([image, context])[None]))[0])
    return torch.stack(logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "batch_size", "reference"),
    [
        ((2, 2, 2), 2, False),
        ((2, 2, 2), 2, True),
        ((3, 2, 2), 3, False),
        ((2, 2), 4, False),
        ((3,), 3, False),
    ],
    ids=["domains", "domains, reference", "sizes differ: one group", "one group", "one source"],
)
def test_three_updates(
    sizes: tuple[int, ...],
    batch_size: int,
    reference: bool,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        if not reference:
            parameters += model.context.parameters()
        loss = cross_entropy(predict(model, torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item()}

    run = assert_matches_naive("arm", naive, predict, sizes=sizes, batch_size=batch_size, reference=reference)
    torch.testing.assert_close(dict(run.algorithm.state_dict()), dict(run.model.state_dict()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reference", [False, True])
def test_the_context_network_learns_unless_it_is_the_references(
    reference: bool, build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    algorithm = build("arm", lr=1e-2, batch_size=2, reference=reference)
    before = {k: v.clone() for k, v in algorithm.context.state_dict().items()}
    algorithm.update(toy_batches(0, n=2))
    for key, value in algorithm.context.state_dict().items():
        statistic = "running" in key or "tracked" in key
        assert torch.equal(value, before[key]) == (reference and not statistic), key


def test_size_of_the_context_network() -> None:
    assert sum(p.numel() for p in context_network(3).parameters()) == 109_185
    assert context_network(3)(torch.rand(2, 3, 9, 11)).shape == (2, 1, 9, 11)


@pytest.fixture
def arm(build: Callable[..., Algorithm]) -> Algorithm:
    """A model that predicts in groups of two, with contexts that differ much between images."""
    task = Task(("a", "b", "c"), ("one",), 16, lambda: SmallCNN(width=8))
    algorithm = build("arm", task, batch_size=2).double().eval()
    with torch.no_grad():
        algorithm.context[-1].weight *= 100
    return algorithm


@torch.no_grad()
def test_a_prediction_depends_on_its_group_alone(arm: Algorithm) -> None:
    x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    logits = arm.predict(x)
    apart = torch.cat([arm.predict(pair) for pair in x.split(2)])
    torch.testing.assert_close(logits, apart, rtol=1e-10, atol=1e-10)
    order = torch.tensor([5, 4, 0, 1, 3, 2])
    torch.testing.assert_close(arm.predict(x[order]), logits[order], rtol=1e-10, atol=1e-10)
    order = torch.tensor([0, 2, 1, 3, 4, 5])
    change = (arm.predict(x[order]) - logits[order]).abs().amax(1)
    assert change[:4].min() > 1e-3
    assert change[4:].max() < 1e-10


@torch.no_grad()
def test_a_batch_that_does_not_divide_is_one_group(arm: Algorithm) -> None:
    x = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    logits = arm.predict(x)
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(arm.predict(x[order]), logits[order], rtol=1e-10, atol=1e-10)
    for i in range(5):
        swapped = x.clone()
        swapped[i] = 1 - x[i]
        change = (arm.predict(swapped) - logits).abs().amax(1)
        assert change.min() > 1e-3


@torch.no_grad()
def test_an_image_alone_is_its_own_context(arm: Algorithm) -> None:
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    expected = arm.head(arm.backbone(torch.cat([x, context_maps(arm.context, x)], 1)))
    torch.testing.assert_close(arm.predict(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(arm.predict(x.expand(2, -1, -1, -1)), expected.expand(2, -1), rtol=1e-10, atol=1e-10)


def test_equal_images_of_one_class_stay_finite(build: Callable[..., Algorithm]) -> None:
    algorithm = build("arm", lr=1e-2, batch_size=1)
    batches = [(torch.full((1, 3, 16, 16), 0.5), torch.tensor([1]))] * 2
    for _ in range(3):
        assert algorithm.update(batches)["loss"] < float("inf")
    assert all(p.isfinite().all() for p in algorithm.parameters())
