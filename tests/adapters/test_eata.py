"""EATA and ETA against a direct form of their equations: images filtered one by one, SGD written out."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.base import Adapter, frozen_copy
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.models.source_statistics import fisher_information

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
Weights = dict[str, Tensor]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    """Overlaid pairs of images, some easy and some hard to classify."""
    pairs = [toy_batches(200 + i, n=12) for i in range(4)]
    share = torch.linspace(0.5, 1, 12).view(-1, 1, 1, 1)
    return [torch.lerp(a, b, share).double() for (a, _), (b, _) in pairs]


@pytest.fixture
def source(toy_batches: Batches) -> list[Tensor]:
    """Source batches of unequal size."""
    return [x[: 8 - 3 * i].double() for i, (x, _) in enumerate(toy_batches(100))]


@pytest.fixture
def model(trained: Trained, source: list[Tensor]) -> Algorithm:
    """A model that is confident about some images and not about others."""
    model = trained("erm", lr=1e-2, batch_norm=True).double()
    model.head.weight.data *= 5
    model.fisher = fisher_information(model, source)
    return model


def affine(model: Algorithm) -> Weights:
    """The weights and biases of batch normalisation, as leaves."""
    return {
        f"backbone.block{i}.1.{key}": getattr(model.backbone.get_submodule(f"block{i}")[1], key).detach().clone()
        for i in range(1, 5)
        for key in ("weight", "bias")
    }


def predict(model: Algorithm, weights: Weights, x: Tensor) -> Tensor:
    z = (x - 0.5) / 0.5
    for i in range(1, 5):
        z = model.backbone.get_submodule(f"block{i}")[0](z)
        mean, var = z.mean((0, 2, 3), keepdim=True), z.var((0, 2, 3), unbiased=False, keepdim=True)
        gamma, beta = (weights[f"backbone.block{i}.1.{key}"].view(1, -1, 1, 1) for key in ("weight", "bias"))
        z = torch.relu((z - mean) / (var + 1e-5).sqrt() * gamma + beta)
    return model.head(z.mean((2, 3)))


class Naive:
    def __init__(self, model: Algorithm, adapter: Adapter) -> None:
        self.model, self.hp = frozen_copy(model), adapter.hp
        self.weights, self.start = affine(model), affine(model)
        self.velocity: Weights = {}
        self.m: Tensor | None = None
        self.kept: list[int] = []  # number of kept images in each pass
        self.redundant = 0

    def __call__(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            past = self.m  # in the release, too, the mean moves after every step
            for w in self.weights.values():
                w.requires_grad_()
            logits = predict(self.model, self.weights, x)
            loss, chosen = torch.zeros((), dtype=x.dtype), []
            e0 = self.hp.margin * math.log(3)
            for row in logits:
                p = row.exp() / row.exp().sum()
                h = -sum(p[k] * p[k].log() for k in range(3))
                if h.item() >= e0:
                    continue
                if past is not None:
                    cosine = (p.detach() @ past) / (p.detach().norm() * past.norm())
                    if abs(cosine.item()) >= self.hp.redundancy / math.sqrt(3):
                        self.redundant += 1
                        continue
                loss = loss + math.exp(e0 - h.item()) * h
                chosen.append(p.detach())
            self.kept.append(len(chosen))
            if chosen:
                mean = sum(chosen) / len(chosen)
                self.m = mean if past is None else 0.9 * past + 0.1 * mean
                self.step(loss / len(chosen))
        return logits.detach()

    def step(self, loss: Tensor) -> None:
        if self.hp.fisher:
            for name, w in self.weights.items():
                loss = loss + self.hp.fisher * (self.model.fisher[name] * (w - self.start[name]) ** 2).sum()
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        for (name, w), g in zip(self.weights.items(), gradients):
            self.velocity[name] = self.hp.momentum * self.velocity.get(name, torch.zeros_like(g)) + g
            self.weights[name] = w.detach() - self.hp.lr * self.velocity[name]


VARIANTS: dict[str, dict[str, object]] = {
    "EATA": {"redundancy": 1.2},
    "ETA": {"redundancy": 1.2, "fisher": 0.0},
    "light pull": {"fisher": 1.0},
    "no momentum": {"redundancy": 1.2, "momentum": 0.0},
    "two steps": {"steps": 2, "redundancy": 1.2},
    "wide margin": {"margin": 0.9, "redundancy": 1.5},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(variant: str, model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "eata", **({"lr": 1e-2} | VARIANTS[variant]))
    naive = Naive(model, adapter)
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        for name, w in naive.weights.items():
            torch.testing.assert_close(adapter.moving[name].detach(), w.detach(), rtol=1e-9, atol=1e-9, msg=name)
        torch.testing.assert_close(adapter.extra["m"], naive.m, rtol=1e-9, atol=1e-9)
    assert adapter.moving.keys() == naive.weights.keys()
    assert any(0 < n < 12 for n in naive.kept)
    assert naive.redundant > 0 or "redundancy" not in VARIANTS[variant]
    assert all(not torch.equal(w, naive.start[name]) for name, w in naive.weights.items())


def test_the_pull_holds_the_weights_back(model: Algorithm, stream: list[Tensor]) -> None:
    def drift(fisher: float) -> float:
        adapter = adapt(model, "eata", lr=1e-2, momentum=0.0, fisher=fisher)
        for x in stream * 3:
            adapter(x)
        f = model.fisher
        return float(sum((f[k] * (p.detach() - adapter.start[k]) ** 2).sum() for k, p in adapter.moving.items()))

    assert drift(1000.0) < 0.9 * drift(0.0)


def test_fisher_information(model: Algorithm, source: list[Tensor]) -> None:
    """It uses batch statistics, the model's own labels, and the squared gradient of a batch weighted by its size."""
    expected = {name: torch.zeros_like(w) for name, w in affine(model).items()}
    for x in source:
        weights = {name: w.requires_grad_() for name, w in affine(model).items()}
        p = predict(frozen_copy(model), weights, x).softmax(1)
        loss = -sum(row.max().log() for row in p) / len(x)
        for name, g in zip(weights, torch.autograd.grad(loss, list(weights.values()))):
            expected[name] += g**2 * len(x) / sum(map(len, source))
    assert [len(x) for x in source] == [8, 5]
    assert model.fisher.keys() == expected.keys()
    for name, f in expected.items():
        torch.testing.assert_close(model.fisher[name], f, rtol=1e-9, atol=1e-12)
        assert not model.fisher[name].requires_grad
    assert fisher_information(model, []) == {}


def test_fisher_information_leaves_the_model_alone(model: Algorithm, source: list[Tensor]) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    fisher_information(model, source)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())


def test_a_model_without_fisher_information(trained: Trained, stream: list[Tensor]) -> None:
    bare = trained("erm", steps=0, batch_norm=True).double()
    for fisher in (None, {"backbone.block1.1.weight": torch.ones(16)}):
        bare.fisher = fisher
        with pytest.raises(InputError, match=r"Fisher information, and this one has none: train it again.*fisher=0"):
            adapt(bare, "eata")
        assert torch.isfinite(adapt(bare, "eata", fisher=0)(stream[0])).all()


def test_it_is_taken_in_the_models_type(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model.float(), "eata")
    assert adapter(stream[0].float()).dtype == torch.float32
    assert {f.dtype for f in adapter.fisher.values()} == {torch.float32}
    assert {f.dtype for f in model.fisher.values()} == {torch.float64}


def test_reset_and_forgetting_clear_the_mean_of_past_predictions(model: Algorithm, stream: list[Tensor]) -> None:
    """In the release the mean survives a reset, so images before the reset would filter those after it."""
    adapter = adapt(model, "eata", lr=1e-2, redundancy=1.2)
    first = adapter(stream[0]), adapter(stream[1])
    assert "m" in adapter.extra
    adapter.reset()
    assert adapter.extra == {}
    assert all(torch.equal(a, b) for a, b in zip(first, (adapter(stream[0]), adapter(stream[1]))))
    settings = {"lr": 1e-2, "redundancy": 1.2, "steps": 2}
    episodic, fresh = adapt(model, "eata", episodic=True, **settings), adapt(model, "eata", **settings)
    for x in stream:
        fresh.reset()
        assert torch.equal(episodic(x), fresh(x))


def test_no_step_where_no_image_is_kept(model: Algorithm, stream: list[Tensor], counting_passes: Any) -> None:
    """Neither momentum nor the penalty changes a weight, and there is no second pass."""
    adapter = adapt(model, "eata", lr=1e-2, steps=3, redundancy=1e-6)
    adapter(stream[0])  # nothing is redundant yet
    before = adapter.state_dict()
    with counting_passes(adapter) as passes:
        adapter(stream[1])
    after = adapter.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert any(not torch.equal(adapter.moving[k], v) for k, v in adapter.start.items())
    assert passes == [12]


def test_few_classes_do_not_make_every_image_redundant(model: Algorithm, stream: list[Tensor]) -> None:
    """The paper's 0.05, for 1000 classes, would: a confident prediction has similarity 1/√K to an even mix of K."""
    adapter = adapt(model, "eata")
    sure, even = 20 * torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64) / 3
    assert adapter.worth_learning(sure, even).all()
    assert not adapter.worth_learning(sure, sure[0].softmax(0))[0]
    assert not adapt(model, "eata", redundancy=0.05 * math.sqrt(3)).worth_learning(sure, even).any()
    assert adapter.hp.redundancy / math.sqrt(1000) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("pixel", [0.0, 1.0])
def test_constant_images(pixel: float, model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "eata", lr=1e-2)
    for x in (torch.full_like(stream[0], pixel), stream[0], torch.full_like(stream[0][:2], pixel)):
        assert torch.isfinite(adapter(x)).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())


def test_the_weights_of_images_are_constants(model: Algorithm, stream: list[Tensor]) -> None:
    """Otherwise the gradient of exp(E0 − H) · H would have the wrong sign for H > 1."""
    adapter = adapt(model, "eata", margin=1.5, fisher=0)
    logits = torch.tensor([[0.1, 0.0, -0.1]], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(adapter.loss(logits), logits)
    (h,) = torch.autograd.grad(F.softmax(logits, 1).mul(F.log_softmax(logits, 1)).sum().neg(), logits)
    assert (g @ h.T).item() > 0


@pytest.mark.parametrize(("name", "value"), [("margin", 0), ("redundancy", -1), ("fisher", -2), ("margin", math.nan)])
def test_wrong_settings(name: str, value: float, model: Algorithm) -> None:
    with pytest.raises(InputError, match=rf"{name} must be .* 0, got {float(value)}"):
        adapt(model, "eata", **{name: value})


def test_what_it_learned_goes_on_elsewhere(model: Algorithm, stream: list[Tensor]) -> None:
    adapter, other = (adapt(model, "eata", lr=1e-2, redundancy=1.2) for _ in range(2))
    for x in stream[:2]:
        adapter(x)
    assert "m" in adapter.extra
    other.load_state_dict(adapter.state_dict())
    assert all(torch.equal(adapter(x), other(x)) for x in stream[2:])
    assert torch.equal(adapter.extra["m"], other.extra["m"])
