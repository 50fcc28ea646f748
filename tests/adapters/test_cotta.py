"""CoTTA against three whole networks, with one pass per view, and Adam and SGD written out."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=12)[1][0][: 12 if i < 2 else 5] for i in range(3)]


class Naive:
    def __init__(self, model: Algorithm, hp: Any, optimizer: Any) -> None:
        self.hp, self.optimizer = hp, optimizer
        self.student, self.teacher, self.anchor = (copy.deepcopy(model) for _ in range(3))
        for network in (self.student, self.teacher, self.anchor):
            for module in network.modules():
                if isinstance(module, BatchNorm):
                    module.train()
        self.generator = torch.Generator().manual_seed(hp.seed)
        self.names = [k for k, _ in model.named_parameters() if k.startswith(("backbone.", "head."))]

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        rows = [-(t.softmax(0) * s.log_softmax(0)).sum() for s, t in zip(logits, target)]
        return sum(rows) / len(rows)

    def target(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            confidence = sum(float(p.max()) for p in self.anchor.predict(x).softmax(1)) / len(x)
            if confidence >= self.hp.threshold:
                return self.teacher.predict(x)
            total = torch.zeros(len(x), 3, dtype=x.dtype)
            for _ in range(self.hp.views):
                total += self.teacher.predict(augment(x, draw_augmentation(len(x), self.generator)))
            return total / self.hp.views

    def __call__(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            target, logits = self.target(x), self.student.predict(x)
            loss = self.cross_entropy(logits, target)
            if self.hp.loss == "symmetric":
                loss = loss / 2 + self.cross_entropy(target, logits) / 2
            parameters = dict(self.student.named_parameters())
            moving = [parameters[k] for k in self.names]
            self.optimizer.step(moving, torch.autograd.grad(loss, moving))
            with torch.no_grad():
                for key in self.names:
                    average = self.teacher.get_parameter(key)
                    average.copy_(self.hp.ema * average + (1 - self.hp.ema) * parameters[key])
                for key in self.names:
                    back = torch.rand(parameters[key].shape, generator=self.generator) < self.hp.restore
                    parameters[key][back] = self.anchor.get_parameter(key)[back]
        return target


VARIANTS: dict[str, dict[str, object]] = {
    "views": {"threshold": 1.0},
    "no views": {"threshold": 0.0},
    "sgd": {"optimizer": "sgd", "lr": 0.1, "threshold": 1.0},
    "symmetric": {"loss": "symmetric", "threshold": 1.0},
    "two steps": {"steps": 2, "threshold": 1.0},
    "two steps, no views": {"steps": 2, "threshold": 0.0},
    "quick teacher, much restored": {"ema": 0.7, "restore": 0.5, "threshold": 1.0},
    "nothing restored": {"restore": 0.0, "threshold": 1.0, "seed": 3},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch_norm", [True, False])
def test_updates_equal_the_naive_ones(
    variant: str, batch_norm: bool, trained: Trained, stream: list[Tensor], naive_optimizer: Any
) -> None:
    """Without views, from a teacher that has changed: at the start it equals the student, and the gradient is zero."""
    model = trained("erm", batch_norm=batch_norm).double()
    adapter = adapt(model, "cotta", **({"lr": 1e-2, "ema": 0.9, "restore": 0.1, "views": 3} | VARIANTS[variant]))
    naive = Naive(model, adapter.hp, naive_optimizer(adapter.hp.lr, adapter.hp.optimizer))
    if adapter.hp.threshold == 0:
        with torch.no_grad():
            for key, value in adapter.extra.items():
                value += 0.1 * torch.randn_like(value)
                naive.teacher.get_parameter(key).copy_(value)
    for x in stream:
        torch.testing.assert_close(adapter(x.double()), naive(x.double()), rtol=1e-9, atol=1e-9)
        assert list(adapter.moving) == naive.names
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.student.get_parameter(key), rtol=1e-9, atol=1e-9, msg=key)
            torch.testing.assert_close(
                adapter.extra[key], naive.teacher.get_parameter(key).detach(), rtol=1e-9, atol=1e-9, msg=key
            )


@pytest.mark.parametrize(("threshold", "teacher"), [(0.0, 1), (1.0, 4)])
@pytest.mark.parametrize("steps", [1, 3])
def test_no_pass_is_run_for_nothing(
    threshold: float, teacher: int, steps: int, trained: Trained, stream: list[Tensor], counting_passes: Any
) -> None:
    """The trained model runs once. In each step the teacher runs in the form in use, and the student runs."""
    adapter = adapt(trained("erm"), "cotta", threshold=threshold, views=4, steps=steps)
    with counting_passes(adapter) as passes:
        adapter(stream[0])
    assert passes == [12] * (1 + steps * (teacher + 1))


def test_the_trained_model_decides_about_views(trained: Trained, stream: list[Tensor], counting_passes: Any) -> None:
    """It decides also when student and teacher have become confident."""
    model = trained("erm", batch_norm=True)
    adapter = adapt(model, "cotta")
    start = adapter.confidence(stream[0])
    for p in (*adapter.moving.values(), *adapter.extra.values()):
        p.data += 0.1
    assert adapter.confidence(stream[0]) == start
    for threshold, passes_of_teacher in ((start - 1e-4, 1), (start + 1e-4, 2)):
        adapter = adapt(model, "cotta", threshold=threshold, views=2)
        with counting_passes(adapter) as passes:
            adapter(stream[0])
        assert len(passes) == 2 + passes_of_teacher


def test_restoring_comes_after_the_teacher_has_followed(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm"), "cotta", lr=1e-2, restore=1.0, ema=0.5, threshold=0.0)
    adapter(stream[0])
    for key, p in adapter.moving.items():
        assert torch.equal(p, adapter.start[key])
        assert not torch.equal(adapter.extra[key], adapter.start[key])


def test_single_entries_are_restored(trained: Trained, stream: list[Tensor]) -> None:
    """About the wanted share of the entries of each tensor returns, not whole tensors."""
    adapter = adapt(trained("erm"), "cotta", lr=1e-2, restore=0.3, threshold=0.0)
    adapter(stream[0])
    for key, p in adapter.moving.items():
        if p.numel() > 500:
            assert 0.2 < float((p == adapter.start[key]).float().mean()) < 0.4, key


def test_episodic_knows_no_history(trained: Trained, stream: list[Tensor]) -> None:
    """Student and teacher both restart."""
    settings = {"lr": 1e-2, "steps": 2, "ema": 0.5, "views": 2, "threshold": 1.0}
    episodic, fresh = (adapt(trained("erm"), "cotta", episodic=e, **settings) for e in (True, False))
    for x in stream:
        draws = episodic.generator.get_state()
        got = episodic(x)
        fresh.reset()
        fresh.generator.set_state(draws)
        assert torch.equal(got, fresh(x))


def test_the_teacher_travels_with_the_state(trained: Trained, stream: list[Tensor]) -> None:
    model, settings = trained("erm", batch_norm=True), {"lr": 1e-2, "ema": 0.5, "views": 2, "threshold": 1.0}
    whole, other = adapt(model, "cotta", **settings), adapt(model, "cotta", **settings)
    whole(stream[0])
    other.load_state_dict(whole.state_dict())
    assert torch.equal(whole(stream[1]), other(stream[1]))
    whole.reset()
    assert all(torch.equal(whole.extra[k], v) for k, v in whole.start.items())


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_images(batch_norm: bool, value: float, trained: Trained) -> None:
    adapter = adapt(trained("erm", batch_norm=batch_norm), "cotta", lr=1e-2, views=2, threshold=1.0)
    for _ in range(4):
        assert torch.isfinite(adapter(torch.full((4, 3, 16, 16), value))).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())


def test_the_state_does_not_grow(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm"), "cotta", views=1)
    adapter(stream[0])
    shapes = {k: v.shape for k, v in adapter.state_dict().items()}
    for x in stream * 2:
        adapter(x)
    assert {k: v.shape for k, v in adapter.state_dict().items()} == shapes
    assert all(v.grad_fn is None for v in adapter.extra.values())


def test_images_that_are_not_square(trained: Trained) -> None:
    adapter = adapt(trained("erm"), "cotta", views=1)
    with pytest.raises(InputError, match="expected images of 20×20 pixels, got 16×20"):
        adapter(torch.rand(4, 3, 16, 20))
    assert adapter(torch.rand(4, 3, 20, 20)).shape == (4, 3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"views": 0}, "views must be at least 1, got 0"),
        ({"threshold": 1.5}, r"threshold must be between 0 and 1, got 1\.5"),
        ({"ema": -0.1}, r"ema must be between 0 and 1, got -0\.1"),
        ({"restore": float("nan")}, "restore must be between 0 and 1, got nan"),
        ({"loss": "both"}, "loss: 'both'.*one-way, symmetric"),
    ],
)
def test_wrong_settings(setting: dict[str, object], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("erm", steps=0), "cotta", **setting)
