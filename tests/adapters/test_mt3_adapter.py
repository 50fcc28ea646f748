"""MT3 at test time against its formula: one pass per view, the inner step written out."""

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
SMALL = {"mt3_width": 6, "mt3_dim": 4, "mt3_inner_lr": 0.3}


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((4, 3, 1))]


def features(x: Tensor, w: Weights) -> Tensor:
    z = (x - 0.5) / 0.5
    for i, stride in enumerate((1, 2, 1, 1), start=1):
        block = f"backbone.block{i}"
        z = F.conv2d(z, w[f"{block}.conv.weight"], w[f"{block}.conv.bias"], stride, padding=1).clamp(min=0)
        z = F.group_norm(z, 8, w[f"{block}.norm.weight"], w[f"{block}.norm.bias"])
    return z.mean((2, 3))


def mlp(name: str, z: Tensor, w: Weights) -> Tensor:
    z = (z @ w[f"{name}.0.weight"].T + w[f"{name}.0.bias"]).clamp(min=0)
    return z @ w[f"{name}.2.weight"].T + w[f"{name}.2.bias"]


def project(view: Tensor, w: Weights) -> Tensor:
    return mlp("projector", features(view[None], w), w)[0]


class Naive:
    """Adapt to one image after another, with targets from the weights before its first step."""

    def __init__(self, model: Algorithm, hp: Any) -> None:
        self.hp, self.clip, self.generator = hp, model.hp.mt3_clip, torch.Generator().manual_seed(hp.seed)
        self.source = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.moving = [k for k in self.source if not k.startswith("head.")]
        self.restart()

    def restart(self) -> None:
        self.w = {k: v.clone().requires_grad_(k in self.moving) for k, v in self.source.items()}
        self.velocity = {k: torch.zeros_like(v) for k, v in self.w.items()}

    def learn(self, images: list[Tensor]) -> None:
        copies = list(images)
        while len(copies) < self.hp.views:
            copies += images
        n = len(copies)
        views = augment(torch.stack(copies + copies), draw_augmentation(2 * n, self.generator))
        targets = [project(view, self.w).detach() for view in views]
        for _ in range(self.hp.steps):
            terms = []
            for i, view in enumerate(views):
                q, v = mlp("predictor", project(view, self.w)[None], self.w)[0], targets[(i + n) % (2 * n)]
                terms.append(2 - 2 * (q * v).sum() / (q.norm() * v.norm()))
            loss = sum(terms[:n]) / n + sum(terms[n:]) / n
            gradients = torch.autograd.grad(loss, [self.w[k] for k in self.moving])
            with torch.no_grad():
                for k, g in zip(self.moving, gradients):
                    g = g * self.clip / g.norm() if g.norm() > self.clip else g
                    self.velocity[k] = self.hp.momentum * self.velocity[k] + g
                    self.w[k] -= self.hp.lr * self.velocity[k]

    def __call__(self, x: Tensor) -> Tensor:
        answers = []
        for group in [[image] for image in x] if self.hp.per == "image" else [list(x)]:
            if self.hp.episodic:
                self.restart()
            self.learn(group)
            z = features(torch.stack(group), self.w)
            answers.append((z @ self.w["head.weight"].T + self.w["head.bias"]).detach())
        return torch.cat(answers)


VARIANTS: dict[str, dict[str, Any]] = {
    "as is": {},
    "other rate": {"lr": 0.05},
    "three steps": {"steps": 3},
    "online": {"episodic": False},
    "online, momentum": {"episodic": False, "momentum": 0.5, "steps": 2},
    "batch": {"per": "batch"},
    "batch, several views": {"per": "batch", "views": 6, "steps": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("longest", [10.0, 0.02], ids=["whole", "clipped"])
def test_updates_equal_the_naive_ones(variant: str, longest: float, trained: Trained, stream: list[Tensor]) -> None:
    model = trained("mt3", steps=3, **SMALL, mt3_clip=longest).double()
    adapter = adapt(model, "mt3", **({"views": 2} | VARIANTS[variant]))
    naive = Naive(model, adapter.hp)
    assert set(adapter.moving) == set(naive.moving)
    assert adapter.hp.lr == VARIANTS[variant].get("lr", 0.3)  # that of training by default
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.w[key], rtol=1e-9, atol=1e-9, msg=key)
            assert not torch.equal(p, adapter.start[key]), key


def test_the_step_is_the_one_that_training_prepared(trained: Trained, stream: list[Tensor]) -> None:
    """With the same views, the adapter's predictions have the cross-entropy of training after the inner step."""
    model, x = trained("mt3", **SMALL).double(), stream[0]
    adapter, y = adapt(model, "mt3", per="batch", views=1), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(3)
    loss, _ = model.task_losses(x, y)
    torch.manual_seed(3)
    adapter.generator.manual_seed(int(torch.randint(2**62, ())))
    assert F.cross_entropy(adapter(x), y).item() == pytest.approx(loss.item(), rel=1e-12)
    assert F.cross_entropy(model.predict(x), y).item() != pytest.approx(loss.item(), rel=1e-3)


def test_an_image_knows_nothing_of_the_others(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("mt3", **SMALL).double()
    together, alone = adapt(model, "mt3", views=2), adapt(model, "mt3", views=2)
    answers = together(stream[0])
    for image, answer in zip(stream[0], answers):
        torch.testing.assert_close(alone(image[None])[0], answer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_images_without_content(value: float, trained: Trained) -> None:
    adapter = adapt(trained("mt3", **SMALL).double(), "mt3", steps=3, views=3)
    assert adapter(torch.full((3, 3, 16, 16), value, dtype=torch.double)).isfinite().all()
    assert all(t.isfinite().all() for t in adapter.state_dict().values() if t.is_floating_point())


def test_a_model_without_projector_and_predictor(trained: Trained) -> None:
    message = "projector and predictor, and a model trained with 'selfreg' has none: train with --algorithm mt3"
    with pytest.raises(InputError, match=message):
        adapt(trained("selfreg", steps=0), "mt3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": 0}, "views must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"per": "domain"}, "per: 'domain'.*image, batch"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("mt3", steps=0), "mt3", **settings)
