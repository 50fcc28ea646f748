"""TTT++ at test time against its formula: pairs and rows in loops, the queue as a list."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
Weights = dict[str, Tensor]


@pytest.fixture
def model(trained: Trained) -> Algorithm:
    return trained("ttt++", lr=1e-2, simclr_dim=6, simclr_temperature=0.4).double()


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((4, 3, 1, 4))]


def features(x: Tensor, w: Weights) -> Tensor:
    z = (x - 0.5) / 0.5
    for i, stride in enumerate((1, 2, 1, 1), start=1):
        block = f"backbone.block{i}"
        z = F.conv2d(z, w[f"{block}.conv.weight"], w[f"{block}.conv.bias"], stride, padding=1).clamp(min=0)
        z = F.group_norm(z, 8, w[f"{block}.norm.weight"], w[f"{block}.norm.bias"])
    return z.mean((2, 3))


def contrast(h: list[Tensor], temperature: float) -> Tensor:
    n = len(h) // 2
    u = [row / row.norm() for row in h]
    terms = []
    for i in range(2 * n):
        powers = {k: ((u[i] * u[k]).sum() / temperature).exp() for k in range(2 * n) if k != i}
        terms.append(-(powers[(i + n) % (2 * n)] / sum(powers.values())).log())
    return sum(terms) / (2 * n)


def distance(rows: list[Tensor], source: Any) -> Tensor:
    """Return the distance of covariances plus half that of means, each divided by its expectation for the source."""
    n, d = len(rows), len(rows[0])
    mean = sum(rows) / n
    trace, square = source.covariance.trace(), (source.covariance**2).sum()
    total = 0.5 * (((mean - source.mean) ** 2).sum() / d) / (trace / n / d)
    if n > 1:
        covariance = sum(torch.outer(row - mean, row - mean) for row in rows) / (n - 1)
        coral = ((covariance - source.covariance) ** 2).sum() / (4 * d**2)
        by_chance = (source.fourth - square) / n + (trace**2 + square) / (n * (n - 1))
        total = total + coral / (by_chance / (4 * d**2))
    return total


class Naive:
    """Run one pass per image and view; SGD with momentum is written out."""

    def __init__(self, model: Algorithm, hp: Any) -> None:
        self.model, self.hp, self.generator = model, hp, torch.Generator().manual_seed(hp.seed)
        self.source = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.moving = [k for k in self.source if k.startswith("backbone.")]
        self.restart()

    def restart(self) -> None:
        self.w = {k: v.clone().requires_grad_(k in self.moving) for k, v in self.source.items()}
        self.velocity = {k: torch.zeros_like(v) for k, v in self.w.items()}
        self.queue: list[tuple[Tensor, Tensor]] = []

    def project(self, z: Tensor) -> Tensor:
        h = (z @ self.w["contrastive_head.0.weight"].T + self.w["contrastive_head.0.bias"]).clamp(min=0)
        return h @ self.w["contrastive_head.2.weight"].T + self.w["contrastive_head.2.bias"]

    def __call__(self, x: Tensor) -> Tensor:
        if self.hp.episodic:
            self.restart()
        for _ in range(self.hp.steps):
            views = augment(torch.cat([x, x]), draw_augmentation(2 * len(x), self.generator))
            loss = contrast([self.project(features(view[None], self.w))[0] for view in views], 0.4)
            z = [features(image[None], self.w)[0] for image in x]
            h = [self.project(row[None])[0] for row in z]
            past_z, past_h = [a for a, _ in self.queue], [b for _, b in self.queue]
            loss = loss + self.hp.align_features * distance(past_z + z, self.model.feature_moments)
            loss = loss + self.hp.align_projections * distance(past_h + h, self.model.projection_moments)
            gradients = torch.autograd.grad(loss, [self.w[k] for k in self.moving])
            with torch.no_grad():
                for k, g in zip(self.moving, gradients):
                    self.velocity[k] = self.hp.momentum * self.velocity[k] + g
                    self.w[k] -= self.hp.lr * self.velocity[k]
        for a, b in zip(z, h):
            self.queue.append((a.detach(), b.detach()))
        while len(self.queue) > self.hp.queue:
            self.queue.pop(0)
        return (features(x, self.w) @ self.w["head.weight"].T + self.w["head.bias"]).detach()


VARIANTS: dict[str, dict[str, Any]] = {
    "as is": {},
    "two steps": {"steps": 2},
    "short queue": {"queue": 5},
    "a queue shorter than the batch": {"queue": 2, "steps": 2},
    "no queue": {"queue": 0},
    "episodic": {"episodic": True, "steps": 2},
    "other weights": {"align_features": 1.0, "align_projections": 0.01, "momentum": 0.0},
    "contrast only": {"align_features": 0.0, "align_projections": 0.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(variant: str, model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "ttt++", **({"lr": 1e-3} | VARIANTS[variant]))
    naive = Naive(model, adapter.hp)
    assert set(adapter.moving) == set(naive.moving)
    for x in stream:
        before = {k: p.detach().clone() for k, p in adapter.moving.items()}
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.w[key], rtol=1e-9, atol=1e-9, msg=key)
        for name, i in (("features", 0), ("projections", 1)):
            assert len(adapter.extra[name]) == len(naive.queue) <= adapter.hp.queue
            for got, kept in zip(adapter.extra[name], naive.queue):
                torch.testing.assert_close(got, kept[i], rtol=1e-9, atol=1e-9)
        lone = len(x) == 1 and variant in ("contrast only", "no queue")
        assert lone or any(not torch.equal(p, before[k]) for k, p in adapter.moving.items())


def test_an_episodic_batch_does_not_depend_on_earlier_ones(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "ttt++", episodic=True, lr=1e-2, queue=64)
    state = adapter.generator.get_state()
    alone = adapter(stream[3])
    adapter(stream[0])
    adapter.generator.set_state(state)  # the same views
    assert torch.equal(adapter(stream[3]), alone)
    assert len(adapter.extra["features"]) == len(stream[3])


def test_memory_is_flat(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "ttt++", queue=6)
    sizes = []
    for _ in range(3):
        for x in stream:
            adapter(x)
        sizes.append(sum(t.untyped_storage().nbytes() for t in adapter.extra.values()))
    assert sizes == [6 * (16 + 6) * 8] * 3
    assert not any(t.requires_grad for t in adapter.extra.values())


@pytest.mark.slow
def test_alignment_brings_the_moments_of_a_shifted_stream_nearer(model: Algorithm, toy_batches: Batches) -> None:
    dark = [0.3 * toy_batches(300 + i, n=16)[0][0].double() for i in range(20)]

    def apart(weight: float) -> float:
        adapter = adapt(model, "ttt++", lr=1e-3, align_features=weight, align_projections=0.0, queue=64)
        for x in dark:
            adapter(x)
        z = torch.cat([adapter.model.backbone(x) for x in dark]).detach()
        return distance(list(z), model.feature_moments).item()

    assert apart(0.05) < 0.5 * apart(0.0)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 3])
def test_images_without_content(value: float, n: int, model: Algorithm) -> None:
    adapter = adapt(model, "ttt++", steps=2)
    for _ in range(3):
        assert adapter(torch.full((n, 3, 16, 16), value, dtype=torch.double)).isfinite().all()
    assert all(t.isfinite().all() for t in adapter.state_dict().values() if t.is_floating_point())


def test_a_model_that_has_seen_no_source_aligns_nothing(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("ttt++", steps=0).double()
    with_, without = adapt(model, "ttt++"), adapt(model, "ttt++", align_features=0, align_projections=0)
    assert torch.equal(with_(stream[0]), without(stream[0]))


def test_a_model_without_a_contrastive_head(trained: Trained) -> None:
    with pytest.raises(InputError, match=r"a model trained with 'erm' has none: train with --algorithm ttt\+\+"):
        adapt(trained("erm", steps=0), "ttt++")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"queue": -1}, "queue must be at least 0, got -1"), ({"steps": 0}, "steps must be at least 1, got 0")],
)
def test_wrong_settings(settings: dict[str, Any], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("ttt++", steps=0), "ttt++", **settings)
