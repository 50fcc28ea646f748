"""RoTTA against two networks, a memory of lists by class and Adam written out image by image."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.rotta import balanced_place
from itta.algorithms import Algorithm
from itta.functional.augment import augment, draw_augmentation

Trained = Callable[..., Algorithm]
QUICK = {"lr": 1e-2, "memory": 7, "every": 8, "share": 0.2, "nu": 0.3}


@dataclass
class Item:
    image: Tensor
    label: int
    entropy: float
    age: int = 0


class Naive:
    """TinyBN block by block, for student and teacher, with a list as memory."""

    def __init__(self, model: Algorithm, hp: Any, optimizer: Any) -> None:
        self.hp, self.optimizer, self.t, self.seen = hp, optimizer, 0, 0
        self.student = {k: v.clone() for k, v in model.state_dict().items()}
        self.teacher = {k: v.clone() for k, v in model.state_dict().items()}
        self.names = [k for b in range(1, 5) for k in (f"backbone.block{b}.1.weight", f"backbone.block{b}.1.bias")]
        self.moving = [self.student[k].requires_grad_() for k in self.names]
        self.memory: list[Item] = []
        self.generator = torch.Generator().manual_seed(hp.seed)
        self.branches: set[str] = set()

    def forward(self, t: dict[str, Tensor], x: Tensor, learning: bool) -> Tensor:
        z, a = (x - 0.5) / 0.5, self.hp.share
        for b, stride in zip(range(1, 5), (1, 2, 1, 2)):
            norm = f"backbone.block{b}.1"
            z = F.conv2d(z, t[f"backbone.block{b}.0.weight"], None, stride, padding=1)
            mean, var = t[f"{norm}.running_mean"], t[f"{norm}.running_var"]
            if learning:
                own = z.mean((0, 2, 3))
                spread = ((z - own.view(1, -1, 1, 1)) ** 2).mean((0, 2, 3))
                mean, var = (1 - a) * mean + a * own, (1 - a) * var + a * spread
                t[f"{norm}.running_mean"], t[f"{norm}.running_var"] = mean.detach(), var.detach()
            z = (z - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + 1e-5).sqrt()
            z = (z * t[f"{norm}.weight"].view(1, -1, 1, 1) + t[f"{norm}.bias"].view(1, -1, 1, 1)).relu()
        return z.mean((2, 3)) @ t["head.weight"].T + t["head.bias"]

    def score(self, item: Item) -> float:
        timeliness = 1 / (1 + math.exp(-item.age / self.hp.memory))
        return self.hp.lambda_t * timeliness + self.hp.lambda_u * item.entropy / math.log(3)

    def offer(self, new: Item) -> None:
        held = [sum(item.label == c for item in self.memory) for c in range(3)]
        if held[new.label] < self.hp.memory / 3:
            if len(self.memory) < self.hp.memory:
                self.branches.add("free")
                self.memory.append(new)
                return
            self.branches.add("majority")
            rivals = [i for i, item in enumerate(self.memory) if held[item.label] == max(held)]
        else:
            self.branches.add("own class")
            rivals = [i for i, item in enumerate(self.memory) if item.label == new.label]
        worst = max(rivals, key=lambda i: self.score(self.memory[i]))
        if self.score(self.memory[worst]) > self.score(new):
            self.memory[worst] = new
        else:
            self.branches.add("turned away")

    def learn(self) -> None:
        for _ in range(self.hp.steps):
            images = torch.stack([item.image for item in self.memory])
            strong = augment(images, draw_augmentation(len(images), self.generator))
            target = self.forward(self.teacher, images, learning=True).softmax(1)
            log_p = self.forward(self.student, strong, learning=True).log_softmax(1)
            loss = torch.zeros((), dtype=log_p.dtype)
            for item, q, lp in zip(self.memory, target, log_p):
                a = item.age / self.hp.memory
                loss = loss - math.exp(-a) / (1 + math.exp(-a)) * (q * lp).sum() / len(images)
            self.optimizer.step(self.moving, torch.autograd.grad(loss, self.moving))
            self.t += 1
            for key in self.names:
                self.teacher[key] = (1 - self.hp.nu) * self.teacher[key] + self.hp.nu * self.student[key].detach()

    def __call__(self, x: Tensor) -> Tensor:
        rows = []
        for image in x:
            rows.append(self.forward(self.teacher, image[None], learning=False)[0])
            p = rows[-1].softmax(0)
            self.offer(Item(image, int(p.argmax()), float(-(p * p.log()).sum())))
            for item in self.memory:
                item.age += 1
            self.seen += 1
            if self.seen % self.hp.every == 0:
                self.learn()
        return torch.stack(rows)


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "sgd": {"optimizer": "sgd", "lr": 1.0},
    "two steps": {"steps": 2},
    "memory never full": {"memory": 200},
    "several rounds per batch": {"every": 3, "memory": 4},
    "as often as batches come": {"every": 12},
    "age alone": {"lambda_u": 0.0, "memory": 10},
    "uncertainty alone": {"lambda_t": 0.0, "seed": 5, "memory": 10},
    "fewer places than classes": {"memory": 2, "every": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(
    variant: str, trained: Trained, stream: list[Tensor], naive_optimizer: Any
) -> None:
    model = trained("erm", batch_norm=True, steps=8, lr=1e-2).double()
    adapter = adapt(model, "rotta", **(QUICK | VARIANTS[variant]))
    naive = Naive(model, adapter.hp, naive_optimizer(adapter.hp.lr, adapter.hp.optimizer))
    for x in stream:
        torch.testing.assert_close(adapter(x.double()), naive(x.double()), rtol=1e-9, atol=1e-9)
        for network in ("student", "teacher"):
            expected = getattr(naive, network)
            for key in adapter.extra:
                if key.startswith(f"{network}."):
                    torch.testing.assert_close(
                        adapter.extra[key], expected[key.removeprefix(f"{network}.")], rtol=1e-9, atol=1e-9, msg=key
                    )
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.student[key], rtol=1e-9, atol=1e-9, msg=key)
        n = len(naive.memory)
        assert adapter.extra["labels"].tolist() == [i.label for i in naive.memory] + [-1] * (adapter.hp.memory - n)
        assert adapter.extra["age"][:n].tolist() == [i.age for i in naive.memory]
        assert adapter.extra["entropy"][:n].tolist() == pytest.approx([i.entropy for i in naive.memory], rel=1e-9)
        assert torch.equal(adapter.extra["images"][:n], torch.stack([i.image for i in naive.memory]))
    assert sorted(adapter.moving) == sorted(naive.names)
    assert naive.t >= 3
    if variant == "as is":
        assert naive.branches == {"free", "majority", "own class", "turned away"}


def test_the_teacher_predicts(trained: Trained, stream: list[Tensor]) -> None:
    """With ν = 0 the teacher gets nothing from the student, and only its statistics change."""
    model = trained("erm", batch_norm=True)
    still, none = adapt(model, "rotta", **(QUICK | {"nu": 0.0})), adapt(model, "rotta", **(QUICK | {"lr": 0.0}))
    for x in stream:
        torch.testing.assert_close(still(x), none(x))
    assert any(not torch.equal(p, still.start[k]) for k, p in still.moving.items())


def test_places() -> None:
    labels, scores = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0.1, 0.2, 0.9, 0.3, 0.5, 0.4])
    assert balanced_place(labels, scores, 0, 0.15, 3) == 1  # at its quota: the worst of its own class
    assert balanced_place(labels, scores, 0, 0.2, 3) is None  # the worst is no worse than the new one
    assert (
        balanced_place(labels, scores, 1, 0.45, 3) == 4
    )  # below its quota: the worst of the largest class, not of all
    assert balanced_place(labels, scores, 1, 0.55, 3) is None
    assert (
        balanced_place(torch.tensor([0, 1, -1, -1]), torch.zeros(4), 0, 9.0, 3) == 2
    )  # 1 < 4/3: the quota is a fraction
    assert (
        balanced_place(torch.tensor([0, 0, 1, -1]), torch.zeros(4), 0, 9.0, 3) is None
    )  # a class at its quota gets no free place


def test_the_memory_is_balanced_and_fresh() -> None:
    """A run of one class fills only its own quota, the others keep theirs, and old images are replaced."""
    labels, born = torch.full((12,), -1), torch.zeros(12)
    for now, label in enumerate([0] * 60 + [1] * 20 + [2] * 5 + [0] * 60):
        place = balanced_place(labels, ((now - born) / 12).sigmoid(), label, 0.5, 3)
        assert place is not None
        labels[place], born[place] = label, now
    assert labels.bincount().tolist() == [4, 4, 4]
    assert sorted(born[labels == 0].tolist()) == [141, 142, 143, 144]


def test_no_pass_is_run_for_nothing(trained: Trained, stream: list[Tensor], counting_passes: Any) -> None:
    adapter = adapt(trained("erm", batch_norm=True), "rotta", **QUICK)
    with counting_passes(adapter) as passes:
        for x in (stream[0], stream[1][:3]):
            adapter(x)
    held = passes[1]
    assert passes == [8, held, held, 4, 3]  # predict; teacher and student on the memory; predict; predict
    assert held <= 7
