"""Whatever is guarded stays near the trained model on a stream, and with settings, made to ruin it."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import ADAPTERS, Guard, adapt
from itta.adapters.source import Source
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.hparams import default

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]

RUINOUS: dict[str, dict[str, Any]] = {  # the others do little harm whatever their settings
    "tent": {"lr": 0.3},
    "bn_adapt": {"mode": "batch"},
    "cotta": {"lr": 0.3, "ema": 0.0, "views": 2},
    "eata": {"lr": 3.0},
    "memo": {"lr": 1.0, "episodic": False, "views": 2},
    "mt3": {"lr": 1.0, "episodic": False, "views": 2},
    "note": {"lr": 3.0},
    "roid": {"lr": 3.0, "keep": 1.0},
    "rotta": {"lr": 3.0, "nu": 1.0, "every": 16},
    "shot": {"lr": 0.3},
    "ttt": {"lr": 10.0, "views": 2},
    "ttt++": {"lr": 0.3},
    "itta": {"lr": 0.3},
}
POINTS = 0.05  # that a guarded adapter may lose


def nasty(model: Algorithm, toy_batches: Batches) -> Batch:
    """As trained; one class; one image again and again; then those surest to be of another class. Some are NaN."""
    x, y = (torch.cat(part) for part in zip(*(toy_batches(700 + i, n=20)[1] for i in range(12))))
    with torch.no_grad():
        sure = model.predict(x).softmax(1)[:, 1]
    one_class, misleading = (y == 2).nonzero()[:48, 0], sure.argsort(descending=True)[:48]
    chosen = torch.cat([torch.arange(32), one_class, torch.full((32,), 5), misleading])
    x, y = x[chosen], y[chosen]
    x[3::28] = float("nan")
    return x, y


def share_right(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """Accuracy over the images that are finite, four at a time."""
    right = []
    for images, labels in zip(x.split(4), y.split(4)):
        finite = images.isfinite().flatten(1).all(1)
        logits = predict(images)
        assert logits.shape == (len(images), 3)
        right.append((logits.argmax(1) == labels)[finite])
    return float(torch.cat(right).float().mean())


def without_nan(predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Zeros stand for the answers to the images that are left out."""

    def call(x: Tensor) -> Tensor:
        finite = x.isfinite().flatten(1).all(1)
        logits = torch.zeros(len(x), 3)
        logits[finite] = predict(x[finite])
        return logits

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_guarded_adapter_stays_near_the_trained_model(name: str, trained_for: Trained, toy_batches: Batches) -> None:
    model = trained_for(name)
    x, y = nasty(model, toy_batches)
    with torch.no_grad():
        plain = share_right(model.predict, x, y)
    assert plain > 0.8
    guard = adapt(model, name, guard=True, **RUINOUS.get(name, {}))
    kept = share_right(guard, x, y)
    assert kept >= plain - POINTS
    assert isinstance(guard, Guard)
    assert guard.counts["non-finite image"] == len(x[3::28])
    if name in RUINOUS:
        bare = adapt(model, name, guard=False, **RUINOUS[name])
        assert share_right(without_nan(bare), x, y) < plain - 0.2


class Drifting(Source):
    """The trained model, one class of which slowly pushes out the others; only a reset helps."""

    def __init__(self, trained: Algorithm, speed: float) -> None:
        super().__init__(trained, default(Source.Hparams))
        self.speed, self.push = speed, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.push += self.speed * len(x)
        return super().forward(x) + torch.tensor([self.push, 0.0, 0.0])

    def reset(self) -> None:
        self.push = 0.0

    def state(self) -> dict[str, Tensor]:
        return {"push": torch.tensor(self.push, dtype=torch.double)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.push = float(state["push"])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("speed", [0.02, 3.0])
def test_slow_collapse_or_fast(speed: float, batch: int, trained: Trained, toy_batches: Batches) -> None:
    """What is lost stays within two budgets, however fast it comes, and in however large batches."""
    model = trained("erm", steps=20, lr=1e-2)
    x, y = (torch.cat(part) for part in zip(*(toy_batches(800 + i, n=64)[1] for i in range(12))))
    inner, again = Drifting(model, speed), Drifting(model, speed)
    guard = Guard(model, inner, default(Guard.Hparams, probation=0))
    plain, bare, kept = (
        sum(int((predict(images).argmax(1) == labels).sum()) for images, labels in zip(x.split(batch), y.split(batch)))
        for predict in (Source(model, default(Source.Hparams)), again, guard)
    )
    assert bare < plain - len(y) / 4
    assert kept >= plain - 2 * guard.hp.budget
    assert guard.log[0].action == "rolled back"
