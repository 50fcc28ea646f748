"""ROID against the plainest reading of its equations: image by image, SGD written out."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.base import frozen_copy
from itta.adapters.roid import ROID
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation

Trained = Callable[..., Algorithm]
Weights = dict[str, Tensor]


@pytest.fixture
def model(trained: Trained) -> Algorithm:
    return trained("erm", lr=1e-2, batch_norm=True).double()


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    return [toy_batches(200 + i, n=10)[i % 2][0].double() for i in range(4)]


class Naive:
    def __init__(self, model: Algorithm, hp: Any) -> None:
        self.model, self.hp = frozen_copy(model), hp
        self.weights = {
            f"block{i}.{key}": getattr(model.backbone.get_submodule(f"block{i}")[1], key).detach().clone()
            for i in range(1, 5)
            for key in ("weight", "bias")
        }
        self.start = {name: w.clone() for name, w in self.weights.items()}
        self.velocity: Weights = {}
        self.mean = [1 / 3] * 3
        self.generator = torch.Generator().manual_seed(hp.seed)

    def predict(self, x: Tensor) -> Tensor:
        z = (x - 0.5) / 0.5
        for i in range(1, 5):
            z = self.model.backbone.get_submodule(f"block{i}")[0](z)
            mean, var = z.mean((0, 2, 3), keepdim=True), z.var((0, 2, 3), unbiased=False, keepdim=True)
            gamma, beta = (self.weights[f"block{i}.{key}"].view(1, -1, 1, 1) for key in ("weight", "bias"))
            z = torch.relu((z - mean) / (var + 1e-5).sqrt() * gamma + beta)
        return self.model.head(z.mean((2, 3)))

    def weigh(self, p: list[list[float]]) -> list[float]:
        def unit(values: list[float]) -> list[float]:
            return [(v - min(values)) / (max(values) - min(values)) for v in values]

        def cosine(a: list[float], b: list[float]) -> float:
            return sum(u * v for u, v in zip(a, b)) / (math.hypot(*a) * math.hypot(*b))

        diversity = unit([1 - cosine(row, self.mean) for row in p])
        certainty = unit([sum(v * math.log(v) for v in row) for row in p])
        average = sum(diversity) / len(diversity)
        now = [sum(row[c] for row in p) / len(p) for c in range(3)]
        self.mean = [self.hp.ema * old + (1 - self.hp.ema) * new for old, new in zip(self.mean, now)]
        return [0.0 if d < average else math.exp(d * s / self.hp.temperature) for d, s in zip(diversity, certainty)]

    def __call__(self, x: Tensor) -> Tensor:
        for w in self.weights.values():
            w.requires_grad_()
        logits = self.predict(x)
        p = logits.softmax(1)
        weights = self.weigh(p.tolist())
        chosen = [i for i, w in enumerate(weights) if w > 0]
        views = self.predict(augment(x[chosen], draw_augmentation(len(chosen), self.generator))).softmax(1)
        loss = torch.zeros(())
        for view, i in zip(views, chosen):
            ratio = sum(p[i, c] * (p[i, c] / sum(p[i, j] for j in range(3) if j != c)).log() for c in range(3))
            loss = loss - weights[i] * ratio / len(x)
            if self.hp.consistency:
                symmetric = sum(view[c] * p[i, c].log() + p[i, c] * view[c].log() for c in range(3))
                loss = loss - weights[i] * 0.5 * symmetric / len(x)
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        for (name, w), g in zip(list(self.weights.items()), gradients):
            self.velocity[name] = self.hp.momentum * self.velocity.get(name, 0) + g
            moved = w.detach() - self.hp.lr * self.velocity[name]
            self.weights[name] = self.hp.keep * moved + (1 - self.hp.keep) * self.start[name]
        prior = p.detach().mean(0)
        smoothing = max(1 / len(x), 1 / 3) / prior.max()
        return p.detach() * (prior + smoothing) / (1 + 3 * smoothing)


@pytest.mark.parametrize("settings", [{}, {"lr": 0.05, "keep": 0.7, "ema": 0.5, "temperature": 1.0}], ids=str)
def test_it_equals_the_naive_one(settings: dict[str, Any], model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "roid", **settings)
    assert isinstance(adapter, ROID)
    naive = Naive(model, adapter.hp)
    for x in stream:
        expected = naive(x)
        torch.testing.assert_close(adapter(x).softmax(1), expected / expected.sum(1, keepdim=True), rtol=0, atol=1e-6)
    moved = [p for name, p in adapter.moving.items() if not torch.equal(p, adapter.start[name])]
    assert moved


def test_without_its_prior_it_is_the_network(model: Algorithm, stream: list[Tensor]) -> None:
    with_prior, without = adapt(model, "roid"), adapt(model, "roid", prior=False)
    first = with_prior(stream[0]), without(stream[0])
    difference = (first[0] - first[1]).log_softmax(1)
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))  # the same for every image


def test_equal_images_are_no_trouble(model: Algorithm) -> None:
    adapter = adapt(model, "roid")
    assert torch.isfinite(adapter(torch.full((4, 3, 16, 16), 0.5).double())).all()
    assert torch.isfinite(adapter(torch.rand(4, 3, 16, 16).double())).all()


def test_settings_that_make_no_sense(model: Algorithm) -> None:
    with pytest.raises(InputError, match="keep must be between 0 and 1, got 2"):
        adapt(model, "roid", keep=2.0)
    with pytest.raises(InputError, match="temperature must be above 0"):
        adapt(model, "roid", temperature=0.0)
