"""RoTTA. Robust Test-Time Adaptation in Dynamic Scenarios. Yuan, Xie, Li, CVPR 2023.
https://arxiv.org/abs/2303.13899

Two things differ here. The student's strong view is DomainBed's augmentation (crop, flip, colour jitter, grey); RoTTA
uses colour jitter, affine map, blur, noise and flip. A batch is split where an update is due, so the updated teacher
predicts the rest of the batch; the release predicts the whole batch first. Both are equal if batches end at updates.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least, check_images, check_shares, with_tensors
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation
from itta.functional.entropy import entropy
from itta.functional.transfers import fetch, send
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.robust_norm import learning_statistics, statistics, use_robust_norm


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    steps: int = hp(1, "steps per update")
    memory: int = hp(64, "images in the memory")
    every: int = hp(64, "images between two updates")
    lambda_t: float = hp(1.0, "weight of age in the choice of the image to drop")
    lambda_u: float = hp(1.0, "weight of uncertainty in the choice of the image to drop")
    share: float = hp(0.05, "share of the memory's statistics in robust batch normalisation, at each step")
    nu: float = hp(0.001, "share of the way that the teacher moves towards the student at each step")


class RoTTA(GradientAdapter):
    """A teacher T predicts each image with running statistics. A memory keeps recent and confident images.

    After every ``every`` images, for the images m in memory with ages a (number of images since, over the memory's
    size): γ, β of batch normalisation ← step on mean σ(−a)·CE(f(augment(m)), softmax f_T(m)); T ← (1−ν)·T + ν·student.
    Both networks mix the memory's statistics into their own running statistics (`RobustNorm`).

    The result does not depend on the batch size.
    """

    name = "rotta"
    paper = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    Hparams = Hparams
    needs = Needs(
        batch_norm=True,
        changes="weights, biases and running statistics of batch normalisation, also those of a teacher",
    )
    predicts = "before"
    on_host = ("labels", "entropy", "age", "seen")

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(1, self.hp, "memory", "every")
        check_shares(self.hp, "share", "nu")
        for name in ("lambda_t", "lambda_u"):
            if not 0 <= getattr(self.hp, name) < math.inf:
                raise InputError(f"{name} must be finite and not negative, got {getattr(self.hp, name)}.")
        if self.hp.episodic:
            raise InputError("rotta cannot run with episodic=True: its updates serve later batches only.")
        affine = norm_affine(self.model)
        use_robust_norm(self.model.backbone, self.hp.share)
        return affine

    def fresh(self) -> dict[str, Tensor]:
        like, size, places = next(self.model.parameters()), self.model.image_size, self.hp.memory
        running = statistics(self.model.backbone, "backbone")
        networks = {**with_prefix("student.", running), **with_prefix("teacher.", {**self.start, **running})}
        return {
            **{name: value.clone() for name, value in networks.items()},
            "images": like.new_zeros(places, 3, size, size),
            "labels": torch.full((places,), -1),  # -1: a free place
            "entropy": torch.zeros(places, dtype=torch.double),
            "age": torch.zeros(places, dtype=torch.long),
            "seen": torch.zeros((), dtype=torch.long),
        }

    def check(self, x: Tensor) -> None:
        check_images(x, self.model.image_size)

    def adapt(self, x: Tensor) -> Tensor:
        seen, every = int(self.extra["seen"]), self.hp.every
        parts = x.tensor_split(tuple(range(every - seen % every, len(x), every)))
        return torch.cat([self.meet(part) for part in parts])

    def meet(self, x: Tensor) -> Tensor:
        """Predict and remember images between two updates, and learn if the last one makes an update due."""
        with torch.no_grad():
            logits = self.run("teacher.", x)
            labels, uncertain = fetch(logits.argmax(1), entropy(logits))
            for image, label, uncertainty in zip(x, labels.tolist(), uncertain.tolist()):
                self.remember(image, label, uncertainty)
        if int(self.extra["seen"]) % self.hp.every == 0:
            self.learn()
        return logits

    def run(self, network: str, x: Tensor) -> Tensor:
        return functional_call(self.model, without_prefix(network, self.extra), (x,))

    def network(self) -> Trained:
        return with_tensors(self.model, without_prefix("teacher.", self.extra))

    def remember(self, image: Tensor, label: int, uncertainty: float) -> None:
        """Offer an image to the memory, then raise the age of all images in it."""
        extra, classes = self.extra, self.model.n_classes
        scores = self.score(extra["age"], extra["entropy"])
        score = self.score(torch.zeros(()), torch.tensor(uncertainty, dtype=torch.double))
        place = balanced_place(extra["labels"], scores, label, float(score), classes)
        if place is not None:
            extra["images"][place] = image
            extra["labels"][place] = label
            extra["entropy"][place] = uncertainty
            extra["age"][place] = 0
        extra["age"] += 1
        extra["seen"] += 1

    def score(self, age: Tensor, uncertainty: Tensor) -> Tensor:
        """Return λ_t·σ(age/N) + λ_u·H/ln K. The memory drops images with a high score first."""
        highest = math.log(max(self.model.n_classes, 2))
        return self.hp.lambda_t * (age.double() / self.hp.memory).sigmoid() + self.hp.lambda_u * uncertainty / highest

    def learn(self) -> None:
        held = (self.extra["labels"] >= 0).nonzero()[:, 0]
        device = self.extra["images"].device
        images = self.extra["images"][send(held, device)]
        weight = (-self.extra["age"][held].double() / self.hp.memory).sigmoid()  # e^−a / (1 + e^−a)
        weight = send(weight, device, images.dtype)
        for _ in range(self.hp.steps):
            drawn = draw_augmentation(len(images), self.generator)
            with learning_statistics(self.model.backbone):
                with torch.no_grad():
                    target = self.run("teacher.", images).softmax(1)
                logits = self.run("student.", augment(images, drawn))
            self.step((weight * F.cross_entropy(logits, target, reduction="none")).mean())
            self.follow()

    @torch.no_grad()
    def follow(self) -> None:
        """Move the teacher's weights a little towards the student's. The teacher has its own running statistics."""
        for name, p in self.moving.items():
            self.extra[f"teacher.{name}"].lerp_(p, self.hp.nu)


def balanced_place(labels: Tensor, scores: Tensor, label: int, score: float, classes: int) -> int | None:
    """Return the place of an image in category-balanced sampling with timeliness and uncertainty (CSTU), or None.

    If the class ``label`` is below its quota N/K, the image gets a free place, or else the place of the worst image of
    the largest classes. If the class is at its quota, the image gets the place of the class's own worst image. An image
    is replaced only if its score is higher than that of the new one.

    >>> scores = torch.tensor([0.6, 0.9, 0.7, 0.0])
    >>> balanced_place(torch.tensor([0, 0, 1, -1]), scores, 1, 0.5, classes=2)
    3
    >>> balanced_place(torch.tensor([0, 0, 1, -1]), scores, 0, 0.5, classes=2)  # at its quota of two
    1
    >>> balanced_place(torch.tensor([0, 0, 1, -1]), scores, 0, 0.9, classes=2)
    """
    free = (labels < 0).nonzero()
    held = labels[labels >= 0].bincount(minlength=classes)
    if held[label] >= len(labels) / classes:
        candidates = labels == label
    elif len(free):
        return int(free[0])
    else:
        candidates = held[labels] == held.max()
    worst = int(scores.where(candidates, torch.tensor(-math.inf, dtype=scores.dtype)).argmax())
    return worst if scores[worst] > score else None
