"""SAR against a direct form of its equations: the weights really move uphill, and images are filtered one by one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import adapt
from itta.adapters.base import Adapter, frozen_copy
from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.backbone import Backbone

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
Weights = dict[str, Tensor]
NORMS = ("batch", "group")


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    """Overlaid pairs of images, some easy and some hard to classify. The last batch is small."""
    pairs = [toy_batches(200 + i, n=12) for i in range(4)]
    share = torch.linspace(0.5, 1, 12).view(-1, 1, 1, 1)
    batches = [torch.lerp(a, b, share).double() for (a, _), (b, _) in pairs]
    return [*batches[:3], batches[3][7:]]


@pytest.fixture
def models(trained: Trained) -> Callable[[str], Algorithm]:
    """(normalisation) -> a model that is confident about some images and not about others."""

    def make(norm: str) -> Algorithm:
        model = trained("erm", lr=1e-2, batch_norm=norm == "batch").double()
        model.head.weight.data *= {"batch": 5, "group": 4}[norm]
        return model

    return make


class Net:
    """The toy networks with normalisation written out, and with weights from a dictionary."""

    def __init__(self, model: Algorithm, norm: str) -> None:
        self.model, self.norm = frozen_copy(model), norm
        self.key = {"batch": "1", "group": "norm"}[norm]
        self.weights = {
            f"backbone.block{i}.{self.key}.{key}": getattr(self.layer(i, self.key), key).detach().clone()
            for i in range(1, 5)
            for key in ("weight", "bias")
        }

    def layer(self, block: int, name: str) -> nn.Module:
        return self.model.backbone.get_submodule(f"block{block}.{name}")

    def predict(self, x: Tensor, weights: Weights) -> Tensor:
        z = (x - 0.5) / 0.5
        for i in range(1, 5):
            if self.norm == "batch":
                z = torch.relu(self.scale(self.standard(self.layer(i, "0")(z), (0, 2, 3)), i, weights))
            else:
                z = torch.relu(self.layer(i, "conv")(z))
                groups = z.view(len(z), 8, -1, *z.shape[2:])
                z = self.scale(self.standard(groups, (2, 3, 4)).view_as(z), i, weights)
        return self.model.head(z.mean((2, 3)))

    def standard(self, z: Tensor, over: tuple[int, ...]) -> Tensor:
        return (z - z.mean(over, keepdim=True)) / (z.var(over, unbiased=False, keepdim=True) + 1e-5).sqrt()

    def scale(self, z: Tensor, block: int, weights: Weights) -> Tensor:
        gamma, beta = (weights[f"backbone.block{block}.{self.key}.{key}"] for key in ("weight", "bias"))
        return z * gamma.view(1, -1, 1, 1) + beta.view(1, -1, 1, 1)


class Naive:
    def __init__(self, model: Algorithm, adapter: Adapter, norm: str) -> None:
        self.net, self.hp = Net(model, norm), adapter.hp
        self.names = [name for name in self.net.weights if "block4" not in name]
        self.start = dict(self.net.weights)
        self.velocity: Weights = {}
        self.mean: float | None = None
        self.kept: list[tuple[int, int]] = []
        self.recovered = 0

    def entropies(self, x: Tensor, weights: Weights) -> tuple[Tensor, list[Tensor]]:
        logits = self.net.predict(x, weights)
        p = logits.exp() / logits.exp().sum(1, keepdim=True)
        return logits, [-sum(row[k] * row[k].log() for k in range(3)) for row in p]

    def gradients(self, loss: Tensor, weights: Weights) -> Weights:
        return dict(zip(self.names, torch.autograd.grad(loss, [weights[name] for name in self.names])))

    def __call__(self, x: Tensor) -> Tensor:
        e0 = self.hp.margin * math.log(3)
        for _ in range(self.hp.steps):
            here = {name: w.clone().requires_grad_() for name, w in self.net.weights.items()}
            logits, h = self.entropies(x, here)
            sure = [i for i in range(len(x)) if h[i].item() < e0]
            self.kept.append((len(sure), 0))
            if not sure:
                return logits.detach()
            g = self.gradients(sum(h[i] for i in sure) / len(sure), here)
            length = math.sqrt(sum((part**2).sum().item() for part in g.values()))
            there = {
                name: (w + self.hp.rho * g[name] / length if name in g else w).detach().requires_grad_()
                for name, w in self.net.weights.items()
            }
            _, h = self.entropies(x, there)
            still = [h[i] for i in sure if h[i].item() < e0]
            self.kept[-1] = len(sure), len(still)
            if not still:
                return logits.detach()
            loss = sum(still) / len(still)
            self.step(self.gradients(loss, there), self.hp.lr * min(1, len(x) / 32))
            self.mean = loss.item() if self.mean is None else 0.9 * self.mean + 0.1 * loss.item()
            if self.mean < self.hp.recover * math.log(3):
                self.net.weights, self.velocity, self.mean = dict(self.start), {}, None
                self.recovered += 1
        return logits.detach()

    def step(self, g: Weights, lr: float) -> None:
        for name, part in g.items():
            self.velocity[name] = self.hp.momentum * self.velocity.get(name, torch.zeros_like(part)) + part
            self.net.weights[name] = self.net.weights[name] - lr * self.velocity[name]


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "far uphill": {"rho": 1.0, "recover": 0.0},
    "not uphill": {"rho": 0.0},
    "two steps": {"steps": 2},
    "no momentum": {"momentum": 0.0},
    "wide margin": {"margin": 0.8},
    "recovers": {"recover": 0.14, "steps": 2},
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(
    variant: str, norm: str, models: Callable[[str], Algorithm], stream: list[Tensor]
) -> None:
    model = models(norm)
    adapter = adapt(model, "sar", **({"lr": 3e-2} | VARIANTS[variant]))
    naive = Naive(model, adapter, norm)
    for x in (*stream, torch.cat(stream)):
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        for name in naive.names:
            torch.testing.assert_close(
                adapter.moving[name].detach(), naive.net.weights[name], rtol=1e-9, atol=1e-9, msg=name
            )
        assert ("loss" in adapter.extra) == (naive.mean is not None)
        assert naive.mean is None or adapter.extra["loss"].item() == pytest.approx(naive.mean, rel=1e-9)
    assert list(adapter.moving) == naive.names  # all but the last block's
    assert any(0 < first < 12 for first, _ in naive.kept)
    assert variant != "far uphill" or any(second < first for first, second in naive.kept)
    assert 0 < naive.recovered < len(naive.kept) if variant == "recovers" else naive.recovered == 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("when", ["at first", "uphill"])
def test_no_step_where_no_image_is_left(
    when: str,
    norm: str,
    models: Callable[[str], Algorithm],
    stream: list[Tensor],
    counting_passes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean over no image is NaN, and a NaN would spoil all weights."""
    adapter = adapt(models(norm), "sar", lr=1e-2, steps=3)
    adapter(stream[0])  # now there is momentum
    if when == "at first":
        adapter.e0 = 1e-9
    else:  # with weights that give all images the same features
        monkeypatch.setattr(adapter, "uphill", lambda loss: {name: 0 * p for name, p in adapter.moving.items()})
    with torch.no_grad():
        expected = adapter.model.predict(stream[1])
    before = adapter.state_dict()
    with counting_passes(adapter) as passes:
        got = adapter(stream[1])
    assert torch.equal(got, expected)
    assert passes == ([12] if when == "at first" else [12, 12])  # and there is no second pass
    assert adapter.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in adapter.state_dict().items())


def test_recovery_goes_back_to_the_start(models: Callable[[str], Algorithm], stream: list[Tensor]) -> None:
    """Weights, momentum and running mean are reset; the random generator is not."""
    adapter = adapt(models("group"), "sar", lr=1e-2, recover=1.0)
    start = adapter.state_dict()
    adapter(stream[0])
    assert adapter.state_dict().keys() == start.keys()
    assert all(torch.equal(v, start[k]) for k, v in adapter.state_dict().items())


def test_few_classes_do_not_look_like_a_collapse(models: Callable[[str], Algorithm]) -> None:
    adapter = adapt(models("group"), "sar")
    assert adapter.collapsed < 0.04
    assert adapter.hp.recover * math.log(1000) == pytest.approx(0.2, abs=1e-3)


def test_one_image(models: Callable[[str], Algorithm], stream: list[Tensor]) -> None:
    """One image is enough for group normalisation, not for batch normalisation."""
    adapter = adapt(models("group"), "sar", lr=1.0)
    for image in stream[0].split(1):
        assert torch.isfinite(adapter(image)).all()
    assert any(not torch.equal(p, adapter.start[name]) for name, p in adapter.moving.items())
    with pytest.raises(InputError, match="at least 2 images at a time for batch normalisation, got 1"):
        adapt(models("batch"), "sar")(stream[0][:1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pixel", [0.0, 1.0])
def test_constant_images(pixel: float, norm: str, models: Callable[[str], Algorithm], stream: list[Tensor]) -> None:
    adapter = adapt(models(norm), "sar", lr=1e-2, margin=1.1)
    for x in (torch.full_like(stream[0], pixel), stream[0], torch.full_like(stream[0][:2], pixel)):
        assert torch.isfinite(adapter(x)).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())


class Late(Backbone):
    """A network with a norm behind the last block, which counts as part of it, and with an unused norm."""

    block_names = ("block1", "block2")
    dim = 4

    def __init__(self, early: bool = True) -> None:
        super().__init__()
        norm = nn.GroupNorm(2, 4) if early else nn.Identity()
        self.block1 = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
        self.block2 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4))
        self.final = nn.LayerNorm(4)
        if early:
            self.unused = nn.LayerNorm(4)

    def stem(self, x: Tensor) -> Tensor:
        return x

    def pool(self, z: Tensor) -> Tensor:
        return self.final(z.mean((-2, -1)))

    @property
    def last_block(self) -> nn.Module:
        return nn.ModuleList([self.block2, self.final])


def test_what_belongs_to_the_last_block(toy: Task, build: Callable[..., Algorithm], stream: list[Tensor]) -> None:
    adapter = adapt(build("erm", replace(toy, make_backbone=Late)).double(), "sar", margin=1.1, lr=1e-2)
    adapter(stream[0])
    assert {name.split(".")[1] for name in adapter.moving} == {"block1", "unused"}
    moved = {name.split(".")[1] for name, p in adapter.moving.items() if not torch.equal(p, adapter.start[name])}
    assert moved == {"block1"}
    with pytest.raises(InputError, match="normalisation layers before the last block.*has none"):
        adapt(build("erm", replace(toy, make_backbone=lambda: Late(early=False))), "sar")


@pytest.mark.parametrize(("name", "value"), [("margin", 0), ("rho", -1), ("recover", -2), ("rho", math.nan)])
def test_wrong_settings(name: str, value: float, trained: Trained) -> None:
    with pytest.raises(InputError, match=rf"{name} must be .* 0, got {float(value)}"):
        adapt(trained("erm", steps=0), "sar", **{name: value})


@pytest.mark.parametrize("norm", NORMS)
def test_what_it_learned_goes_on_elsewhere(norm: str, models: Callable[[str], Algorithm], stream: list[Tensor]) -> None:
    model = models(norm)
    adapter, other = (adapt(model, "sar", lr=1e-2) for _ in range(2))
    first = [adapter(x) for x in stream[:2]]
    assert "loss" in adapter.extra
    other.load_state_dict(adapter.state_dict())
    assert all(torch.equal(adapter(x), other(x)) for x in stream[2:])
    assert torch.equal(adapter.extra["loss"], other.extra["loss"])
    adapter.reset()
    assert all(torch.equal(adapter(x), before) for x, before in zip(stream, first))
