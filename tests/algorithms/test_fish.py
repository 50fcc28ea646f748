"""Fish against its formula: a second network steps on each domain in turn, and the first follows part of the way."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.nn.small_cnn import SmallCNN


def slow_weights(model: Algorithm) -> nn.Module:
    return nn.Sequential(model.backbone, model.head)


@pytest.mark.parametrize(
    ("sizes", "meta_lr", "shuffle", "single_source"),
    [
        ((6, 6, 6), 0.5, False, "split"),
        ((6, 5, 4), 0.05, False, "split"),
        ((6, 5, 4), 0.5, True, "split"),
        ((1, 1, 1), 0.5, False, "split"),
        ((8,), 0.5, False, "split"),
        ((6,), 0.5, False, "native"),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...],
    meta_lr: float,
    shuffle: bool,
    single_source: str,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        slow = slow_weights(model)
        if not hasattr(state, "adam"):
            state.adam, state.fast = naive_adam(1e-2, 1e-2), copy.deepcopy(slow)
        order = torch.randperm(len(batches)).tolist() if shuffle else range(len(batches))
        state.fast.load_state_dict(slow.state_dict())
        fast = list(state.fast.parameters())
        losses = []
        for x, y in [batches[e] for e in order]:
            loss = cross_entropy(state.fast(x), y)
            state.adam.step(fast, torch.autograd.grad(loss, fast))
            losses.append(loss.item())
        with torch.no_grad():
            for p, q in zip(slow.parameters(), fast):
                p += meta_lr * (q - p)
        return {"loss": sum(losses) / len(losses)}

    settings = {"meta_lr": meta_lr, "fish_shuffle": shuffle, "single_source": single_source}
    assert_matches_naive("fish", naive, sizes=sizes, **settings)


def with_batch_norm() -> SmallCNN:
    backbone = SmallCNN(width=8)
    for block in (backbone.block1, backbone.block2, backbone.block3, backbone.block4):
        block.norm = nn.BatchNorm2d(block.conv.out_channels)
    return backbone


def test_statistics_follow_as_weights_do(
    build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    """With ε = 1 the first update gives the fast network itself, which the test interpolates with."""
    task = Task(("across", "down", "chequer"), ("warm", "cold"), 16, with_batch_norm)
    start, fast, slow = (build("fish", task, lr=1e-2, meta_lr=e).double() for e in (1.0, 1.0, 0.25))
    batches = [(x.double(), y) for x, y in toy_batches(0)]
    fast.update(batches)
    slow.update(batches)
    begin, end = start.state_dict(), fast.state_dict()
    moved = [k for k, t in begin.items() if t.is_floating_point()]
    assert any(k.endswith("running_var") for k in moved)
    for key in moved:
        assert not torch.equal(begin[key], end[key]), key
        expected = begin[key] + 0.25 * (end[key] - begin[key])
        torch.testing.assert_close(slow.state_dict()[key], expected, rtol=1e-12, atol=1e-12)
