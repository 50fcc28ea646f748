"""Online SHOT against the loss written out in probabilities and the optimisers written out in loops."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.shot import pseudo_label_loss
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((12, 12, 5))]


class Naive:
    def __init__(self, model: Algorithm, optimizer: Any, settings: dict[str, Any]) -> None:
        self.model, self.optimizer, self.steps = copy.deepcopy(model).eval(), optimizer, settings.get("steps", 1)
        self.weight, self.threshold = settings.get("pseudo_label", 0.0), settings.get("threshold", 0.9)
        self.moving = dict(self.model.backbone.named_parameters())
        self.sure: list[int] = []

    def loss(self, logits: Tensor) -> Tensor:
        p = logits.exp() / logits.exp().sum(1, keepdim=True)
        mean = sum(row for row in p) / len(p)
        loss = -sum((row * row.log()).sum() for row in p) / len(p) + (mean * mean.log()).sum()
        chosen = [-row.max().log() for row in p if row.max() > self.threshold]
        self.sure.append(len(chosen))
        return loss + self.weight * sum(chosen) / len(chosen) if chosen else loss

    def __call__(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            logits = self.model.head(self.model.backbone(x))
            moving = list(self.moving.values())
            self.optimizer.step(moving, torch.autograd.grad(self.loss(logits), moving))
        return logits.detach()


VARIANTS: dict[str, dict[str, Any]] = {
    "as is": {},
    "three steps": {"steps": 3},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 1e-2},
    "pseudo-labels for some": {"pseudo_label": 0.3, "threshold": 0.4},
    "pseudo-labels for all": {"pseudo_label": 0.3, "threshold": 0.0},
    "pseudo-labels for none": {"pseudo_label": 0.3, "threshold": 0.999},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_updates_equal_the_naive_ones(
    variant: str, batch_norm: bool, trained: Trained, stream: list[Tensor], naive_optimizer: Any
) -> None:
    settings = {"lr": 1e-3} | VARIANTS[variant]
    model = trained("erm", batch_norm=batch_norm).double()
    adapter = adapt(model, "shot", **settings)
    optimizer = naive_optimizer(settings["lr"], settings.get("optimizer", "adam"), settings.get("momentum", 0.0))
    naive = Naive(model, optimizer, settings)
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=0, atol=1e-9)
    for name, p in naive.moving.items():
        torch.testing.assert_close(adapter.moving[f"backbone.{name}"].detach(), p.detach(), rtol=0, atol=1e-9)
    if "pseudo" in variant and not batch_norm:
        some = any(0 < n < len(x) for n, x in zip(naive.sure, stream))
        assert {"some": some, "all": naive.sure == [12, 12, 5], "none": naive.sure == [0, 0, 0]}[variant.split()[-1]]


def test_the_head_and_the_statistics_stay(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm", batch_norm=True).double(), "shot", lr=1e-2)
    before = {k: v.clone() for k, v in adapter.model.state_dict().items()}
    for x in stream:
        adapter(x)
    moved = {k for k, v in adapter.model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved <= {f"backbone.{k}" for k, _ in adapter.model.backbone.named_parameters()}
    assert "backbone.block1.0.weight" in moved


def test_predictions_come_before_the_update(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    with torch.no_grad():
        source = model.predict(stream[0])
    adapter = adapt(model, "shot", lr=1e-2)
    assert torch.equal(adapter(stream[0]), source)
    assert not torch.allclose(adapter(stream[0]), source)


def test_one_image_teaches_nothing_and_is_refused(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm").double(), "shot", lr=1e-2)
    adapter.adapt(stream[0][:1])
    for p in adapter.moving.values():
        torch.testing.assert_close(p.grad, torch.zeros_like(p), rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="shot needs at least 2 images at a time, got 1"):
        adapter(stream[0][:1])


def test_nobody_sure_is_no_nan() -> None:
    """A plain cross-entropy would return the mean over an empty selection, NaN."""
    logits = torch.tensor([[0.1, 0.0], [0.0, 0.2]], requires_grad=True)
    loss = pseudo_label_loss(logits, 0.9)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


def test_labels_are_constants_and_the_mean_is_over_the_sure() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 0.2], [0.0, 4.0]], dtype=torch.float64, requires_grad=True)
    pseudo_label_loss(logits, 0.9).backward()
    p = logits.detach().softmax(1)
    expected = torch.stack([p[0] - torch.tensor([1, 0]), torch.zeros(2), p[2] - torch.tensor([0, 1])]) / 2
    torch.testing.assert_close(logits.grad, expected.double())


@pytest.mark.parametrize("pseudo_label", [0.0, 0.1])
def test_degenerate_images(pseudo_label: float, trained: Trained) -> None:
    adapter = adapt(trained("erm"), "shot", pseudo_label=pseudo_label, lr=1e-2)
    for value in (0.0, 1.0, 1.0):
        assert torch.isfinite(adapter(torch.full((4, 3, 16, 16), value))).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values() if v.is_floating_point())


def test_predictions_beyond_doubt(trained: Trained, stream: list[Tensor]) -> None:
    """Probabilities of exactly 0 and 1 have finite gradients."""
    model = trained("erm")
    model.head.weight.data.mul_(1e4)
    adapter = adapt(model, "shot", pseudo_label=0.1, lr=1e-2)
    for x in stream:
        assert torch.isfinite(adapter(x.float())).all()
    assert all(torch.isfinite(p).all() for p in adapter.moving.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pseudo_label": -0.1}, "pseudo_label must be at least 0, got -0.1"),
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1, got 1.0"),
        ({"threshold": float("nan")}, "threshold must be at least 0 and below 1, got nan"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("erm", steps=0), "shot", **settings)
