"""LAME against loops over images."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((12, 7, 3, 1))]


@torch.no_grad()
def naive(model: Algorithm, x: Tensor, kind: str = "knn", k: int = 5, steps: int = 100) -> Tensor:
    """Return log Y, with every sum written out. The energy of the relaxed problem decides when to stop."""
    z, n = model.backbone(x), len(x)
    unit = [(row / row.norm()).tolist() for row in z]
    p = model.head(z).softmax(1).tolist()
    near = [sorted((math.dist(unit[i], unit[j]), j) for j in range(n) if j != i)[:k] for i in range(n)]
    if kind == "knn":
        w = [[float(j in [m for _, m in near[i]]) for j in range(n)] for i in range(n)]
    elif kind == "linear":
        w = [[sum(a * b for a, b in zip(unit[i], unit[j])) for j in range(n)] for i in range(n)]
    else:
        rows = [sorted(math.dist(unit[i], unit[j]) for j in range(n))[:k] for i in range(n)]  # i itself is the first
        sigma = sum(row[-1] for row in rows) / n
        w = [[1.0] * n for _ in range(n)]
        for i in range(n):
            for j in set(range(n)) - {i}:
                w[i][j] = math.exp(-(math.dist(unit[i], unit[j]) ** 2) / (2 * sigma**2))
    y, before = p, None
    for _ in range(steps):
        pull = [[sum(w[i][j] * y[j][c] for j in range(n)) for c in range(len(p[0]))] for i in range(n)]
        y = [[a * math.exp(b) for a, b in zip(p[i], pull[i])] for i in range(n)]
        y = [[v / sum(row) for v in row] for row in y]
        energy = sum(
            y[i][c] * (math.log(y[i][c]) - math.log(p[i][c]) - pull[i][c]) for i in range(n) for c in range(len(p[0]))
        )
        if before is not None and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return torch.tensor(y, dtype=torch.float64).log()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"neighbours": 2},
        {"iterations": 1},
        {"iterations": 3},
        {"affinity": "rbf"},
        {"affinity": "rbf", "neighbours": 2},
        {"affinity": "linear"},
    ],
    ids=str,
)
def test_predictions_equal_the_naive_ones(settings: dict[str, object], trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    adapter = adapt(model, "lame", **settings)
    kind, k = settings.get("affinity", "knn"), settings.get("neighbours", 5)
    for x in stream:
        expected = naive(model, x, str(kind), int(k), int(settings.get("iterations", 100)))
        torch.testing.assert_close(adapter(x), expected, rtol=0, atol=1e-9)


def test_nothing_is_kept_between_batches(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm").double(), "lame")
    first = adapter(stream[0])
    adapter(stream[1])
    assert torch.equal(adapter(stream[0]), first)
    assert adapter.state_dict() == {}


def test_an_image_alone_has_no_neighbours(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    with torch.no_grad():
        expected = model.predict(stream[3]).softmax(1)
    torch.testing.assert_close(adapt(model, "lame")(stream[3]).softmax(1), expected, rtol=0, atol=1e-12)


def test_the_backbone_runs_once(trained: Trained, stream: list[Tensor], counting_passes: Any) -> None:
    adapter = adapt(trained("erm").double(), "lame")
    with counting_passes(adapter, "backbone") as passes:
        adapter(stream[0])
    assert passes == [12]


@pytest.mark.parametrize("affinity", ["knn", "rbf", "linear"])
def test_images_that_are_all_the_same(affinity: str, trained: Trained) -> None:
    model = trained("erm")
    adapter, x = adapt(model, "lame", affinity=affinity), torch.full((30, 3, 16, 16), 0.5)
    with torch.no_grad():
        source = model.predict(x)
    got = adapter(x)
    assert torch.isfinite(got).all()
    assert torch.equal(got.argmax(1), source.argmax(1))
    model.head.weight.data.mul_(1e4)  # a probability of exactly 1
    assert torch.isfinite(adapt(model, "lame", affinity=affinity)(x)).all()


@pytest.mark.parametrize("affinity", ["knn", "rbf", "linear"])
def test_features_that_are_all_zero(affinity: str, trained: Trained) -> None:
    model = trained("erm", batch_norm=True)
    model.backbone.block4[1].bias.data.fill_(-1e3)  # its ReLU gives zeros
    x = torch.rand(6, 3, 16, 16)
    assert not model.backbone(x).any()
    assert torch.isfinite(adapt(model, "lame", affinity=affinity)(x)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neighbours": 0}, "neighbours must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"affinity": "cosine"}, "affinity: 'cosine'.*knn, rbf, linear"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("erm", steps=0), "lame", **settings)
