"""NOTE against a network, a reservoir and Adam written out image by image."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.note import reservoir_place
from itta.algorithms import Algorithm

Trained = Callable[..., Algorithm]
QUICK = {"lr": 1e-2, "memory": 6, "every": 8, "bn_momentum": 0.2}


class Naive:
    """TinyBN block by block, with a list of (image, label) as memory."""

    def __init__(self, model: Algorithm, hp: Any, optimizer: Any) -> None:
        self.hp, self.optimizer, self.t, self.seen = hp, optimizer, 0, 0
        self.tensors = {k: v.clone() for k, v in model.state_dict().items()}
        self.names = [k for b in range(1, 5) for k in (f"backbone.block{b}.1.weight", f"backbone.block{b}.1.bias")]
        self.moving = [self.tensors[k].requires_grad_() for k in self.names]
        self.memory: list[tuple[Tensor, int]] = []
        self.counts = [0, 0, 0]
        self.generator = torch.Generator().manual_seed(hp.seed)

    def forward(self, x: Tensor, learning: bool) -> Tensor:
        z, t, m = (x - 0.5) / 0.5, self.tensors, self.hp.bn_momentum
        for b, stride in zip(range(1, 5), (1, 2, 1, 2)):
            z = F.conv2d(z, t[f"backbone.block{b}.0.weight"], None, stride, padding=1)
            mean, var = t[f"backbone.block{b}.1.running_mean"], t[f"backbone.block{b}.1.running_var"]
            if learning:
                n = z.numel() // z.shape[1]
                old_mean, old_var = mean, var
                mean = z.mean((0, 2, 3))
                var = ((z - mean.view(1, -1, 1, 1)) ** 2).mean((0, 2, 3))
                t[f"backbone.block{b}.1.running_mean"] = ((1 - m) * old_mean + m * mean).detach()
                t[f"backbone.block{b}.1.running_var"] = ((1 - m) * old_var + m * var * n / (n - 1)).detach()
            z = (z - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + 1e-5).sqrt()
            z = z * t[f"backbone.block{b}.1.weight"].view(1, -1, 1, 1) + t[f"backbone.block{b}.1.bias"].view(
                1, -1, 1, 1
            )
            z = z.relu()
        return z.mean((2, 3)) @ t["head.weight"].T + t["head.bias"]

    def remember(self, image: Tensor, label: int) -> None:
        keep, which = torch.rand(2, generator=self.generator).tolist()
        self.counts[label] += 1
        if len(self.memory) < self.hp.memory:
            self.memory.append((image, label))
            return
        held = [sum(k == c for _, k in self.memory) for c in range(3)]
        if held[label] < max(held):
            candidates = [i for i, (_, k) in enumerate(self.memory) if held[k] == max(held)]
        elif keep < held[label] / self.counts[label]:
            candidates = [i for i, (_, k) in enumerate(self.memory) if k == label]
        else:
            return
        self.memory[candidates[int(which * len(candidates))]] = (image, label)

    def learn(self) -> None:
        for _ in range(self.hp.steps):
            p = self.forward(torch.stack([image for image, _ in self.memory]), learning=True).softmax(1)
            loss = -(p * p.log()).mean()  # over images and classes
            self.optimizer.step(self.moving, torch.autograd.grad(loss, self.moving))
            self.t += 1

    def __call__(self, x: Tensor) -> Tensor:
        rows = []
        for image in x:
            rows.append(self.forward(image[None], learning=False)[0].detach())
            self.remember(image, int(rows[-1].argmax()))
            self.seen += 1
            if self.seen % self.hp.every == 0:
                self.learn()
        return torch.stack(rows)


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "sgd": {"optimizer": "sgd", "lr": 1.0},
    "two steps": {"steps": 2},
    "memory never full": {"memory": 100},
    "several rounds per batch": {"every": 3, "memory": 4},
    "as often as batches come": {"every": 12},
    "another seed": {"seed": 5},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(
    variant: str, trained: Trained, stream: list[Tensor], naive_optimizer: Any
) -> None:
    model = trained("erm", batch_norm=True, steps=8, lr=1e-2).double()
    adapter = adapt(model, "note", **(QUICK | VARIANTS[variant]))
    naive = Naive(model, adapter.hp, naive_optimizer(adapter.hp.lr, adapter.hp.optimizer))
    for x in stream:
        torch.testing.assert_close(adapter(x.double()), naive(x.double()), rtol=1e-9, atol=1e-9)
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.tensors[key], rtol=1e-9, atol=1e-9, msg=key)
        for key in adapter.extra:
            if key.startswith("running."):
                torch.testing.assert_close(
                    adapter.extra[key], naive.tensors[key.removeprefix("running.")], rtol=1e-9, atol=1e-9, msg=key
                )
        n = len(naive.memory)
        assert adapter.extra["labels"].tolist() == [k for _, k in naive.memory] + [-1] * (adapter.hp.memory - n)
        assert torch.equal(adapter.extra["images"][:n], torch.stack([image for image, _ in naive.memory]))
        assert adapter.extra["predicted"].tolist() == naive.counts
    assert sorted(adapter.moving) == sorted(naive.names)
    assert naive.t >= 3
    assert sum(c > 0 for c in naive.counts) > 1  # or balancing was not tested


def test_every_image_of_a_class_is_as_likely_to_stay() -> None:
    random.seed(0)
    stayed = [0] * 20
    for _ in range(400):
        labels, who = torch.full((4,), -1), [-1] * 4
        for i in range(20):
            place = reservoir_place(labels, 0, i + 1, random.random(), random.random())
            if place is not None:
                labels[place], who[place] = 0, i
        for i in who:
            stayed[i] += 1
    assert all(45 < n < 120 for n in stayed), stayed  # expected: 80, with a deviation of 8


def test_the_memory_is_balanced_by_prediction() -> None:
    """A long run of one class, as in a sorted stream, does not remove the other classes."""
    random.seed(0)
    labels, predicted = torch.full((12,), -1), [0, 0, 0]
    for label in [0] * 100 + [1] * 30 + [2] * 5 + [0] * 100:
        predicted[label] += 1
        place = reservoir_place(labels, label, predicted[label], random.random(), random.random())
        if place is not None:
            labels[place] = label
    assert labels.bincount().tolist() == [4, 4, 4]


def test_no_pass_is_run_for_nothing(trained: Trained, stream: list[Tensor], counting_passes: Any) -> None:
    adapter = adapt(trained("erm", batch_norm=True), "note", **QUICK)
    with counting_passes(adapter) as passes:
        for x in (stream[0], stream[1][:3], stream[1][:1]):
            adapter(x)
    assert passes == [8, 6, 4, 3, 1, 6]  # predict, learn from the memory, predict; predict; predict, learn
