"""Shared by the oracle tests: three updates of a method, and the same three updates computed naively in float64."""

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.nn.small_cnn import SmallCNN

Naive = Callable[[Algorithm, list[Batch], SimpleNamespace], dict[str, float]]
TOLERANCE = 1e-9
CUTTING = (
    "cad", "cdann", "condcad", "coral", "dann", "feature_critic", "fish", "fishr", "groupdro", "metareg", "mldg", "mmd",
    "vrex",
)  # fmt: skip


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean over images, term by term."""
    return torch.stack([row.exp().sum().log() - row[label] for row, label in zip(logits, y)]).mean()


@pytest.fixture(name="cross_entropy")
def cross_entropy_fixture() -> Callable[[Tensor, Tensor], Tensor]:
    return cross_entropy


def random_batches(step: int, sizes: Sequence[int], n_classes: int) -> list[Batch]:
    """Make double-precision images, one domain per size. Each domain has its own tint."""
    g = torch.Generator().manual_seed(1000 + step)
    tints = [torch.rand(3, 1, 1, generator=g, dtype=torch.double) for _ in sizes]
    return [
        (torch.rand(n, 3, 16, 16, generator=g, dtype=torch.double) * tint, torch.randint(n_classes, (n,), generator=g))
        for n, tint in zip(sizes, tints)
    ]


def cut(batch: Batch) -> list[Batch]:
    """Cut a batch into three pseudo-domains of equal size; the first ones may have one image more."""
    (x, y), order, start, parts = batch, torch.randperm(len(batch[0])), 0, []
    for k in range(3):
        chosen = order[start : start + len(x) // 3 + (k < len(x) % 3)].tolist()
        parts.append((x[chosen], y[chosen]))
        start += len(chosen)
    return parts


@pytest.fixture
def assert_matches_naive(build: Callable[..., Algorithm]) -> Callable[..., SimpleNamespace]:
    """(name, naive, predict, sizes, steps, settings): run a method and its naive form side by side and compare.

    ``naive(model, batches, state)`` updates its own copy of the model once and returns the logs it expects. ``state``
    is an empty namespace that is kept between steps. Both see the same random numbers. If the method splits a single
    domain into pseudo-domains (``CUTTING``), ``naive`` gets the pseudo-domains.
    """

    def run(
        name: str,
        naive: Naive,
        predict: Callable[[Algorithm, Tensor], Tensor] = lambda model, x: model.head(model.backbone(x)),
        sizes: Sequence[int] = (6, 6, 6),
        steps: int = 3,
        **settings: Any,
    ) -> SimpleNamespace:
        task = Task(("a", "b", "c"), tuple(f"domain {i}" for i in range(len(sizes))), 16, lambda: SmallCNN(width=8))
        algorithm = build(name, task, **({"lr": 1e-2, "weight_decay": 1e-2} | settings)).double()
        model = copy.deepcopy(algorithm, memo={id(algorithm.optimizers): {}})
        before = [p.clone() for p in algorithm.backbone.parameters()]
        cuts = len(sizes) == 1 and name in CUTTING and settings.get("single_source") != "native"
        state = SimpleNamespace()
        for step in range(steps):
            batches = random_batches(step, sizes, 3)
            torch.manual_seed(step)
            got = algorithm.update(batches)
            torch.manual_seed(step)
            expected = naive(model, cut(batches[0]) if cuts else batches, state)
            assert got.keys() == expected.keys()
            for key, value in expected.items():
                assert got[key] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), (step, key)
        x = torch.cat([x for x, _ in random_batches(steps, sizes, 3)])
        with torch.no_grad():
            algorithm.eval(), model.eval()
            torch.manual_seed(0)
            logits = algorithm.predict(x)
            torch.manual_seed(0)
            torch.testing.assert_close(logits, predict(model, x), rtol=TOLERANCE, atol=TOLERANCE)
        assert any(not torch.equal(p, q) for p, q in zip(before, algorithm.backbone.parameters()))
        return SimpleNamespace(algorithm=algorithm, model=model, state=state)

    return run
