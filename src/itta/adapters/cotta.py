"""CoTTA. Continual Test-Time Domain Adaptation. Wang, Fink, Van Gool, Dai, CVPR 2022.
https://arxiv.org/abs/2203.13591

Three things differ here. The teacher's views are DomainBed's augmentation (crop, flip, colour jitter, grey), drawn
image by image; CoTTA uses colour jitter, affine map, blur, noise and flip. All parameters of backbone and head change
and may be restored; the release restores only those named weight or bias. The target has two forms, and only the form
in use is computed.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least, check_images, check_shares, not_fixed, with_tensors
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import head, whole_backbone
from itta.functional.augment import augment, draw_augmentation
from itta.functional.transfers import send
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.batch_norm import use_batch_statistics


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    views: int = hp(32, "augmented views in the average of the teacher's target")
    threshold: float = hp(0.92, "average the target over views if the trained model's mean confidence is below this")
    ema: float = hp(0.999, "share of its own weights that the teacher keeps at each update")
    restore: float = hp(0.01, "probability that a weight returns to its trained value after an update")
    loss: Literal["one-way", "symmetric"] = hp(
        "one-way", "cross-entropy of student to teacher; or the mean of that and of teacher to student"
    )


class CoTTA(GradientAdapter):
    """t = mean over views of f_T(augment(x)) if mean max softmax f_0(x) < threshold, else f_T(x), in logits; predict t.

    θ ← step on −mean Σ_k softmax(t)_k log softmax(f_θ(x))_k; θ_T ← ema·θ_T + (1−ema)·θ; then each entry of θ
    returns to its value in the trained model θ_0 with probability ``restore``.

    Student θ, teacher T and trained model 0 all normalise by the statistics of the present batch.
    """

    name = "cotta"
    paper = "Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022"
    Hparams = Hparams
    needs = Needs(batch=2, changes="all of backbone and head, and a teacher that follows them")
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(1, self.hp, "views")
        check_shares(self.hp, "threshold", "ema", "restore")
        use_batch_statistics(self.model.backbone)
        return {**whole_backbone(self.model), **head(self.model)}

    def fresh(self) -> dict[str, Tensor]:
        """Return the teacher's parameters."""
        return {name: value.clone() for name, value in self.start.items()}

    def forget(self) -> None:
        super().forget()
        self.extra = self.fresh()

    def check(self, x: Tensor) -> None:
        super().check(x)
        check_images(x, x.shape[-1])  # views are square

    def adapt(self, x: Tensor) -> Tensor:
        unsure = self.confidence(x) < self.hp.threshold
        for _ in range(self.hp.steps):
            target = self.target(x, self.hp.views if unsure else 0)
            self.step(self.loss(self.model.predict(x), target))
            self.follow()
            self.return_to_start(self.draw_returning())
        return target

    def network(self) -> Trained:
        return with_tensors(self.model, self.extra)

    def freeze(self) -> nn.Module:
        raise not_fixed(self.name, "its prediction depends on the batch, and on random views")

    @torch.no_grad()
    def confidence(self, x: Tensor) -> float:
        """Return the trained model's mean confidence over the batch."""
        return float(functional_call(self.model, self.start, (x,)).softmax(1).amax(1).mean())

    @torch.no_grad()
    def target(self, x: Tensor, views: int) -> Tensor:
        """Return the teacher's logits: the mean over augmented views, or those of the images if ``views`` is 0."""
        if views == 0:
            return functional_call(self.model, self.extra, (x,))
        drawn = (draw_augmentation(len(x), self.generator) for _ in range(views))
        return torch.stack([functional_call(self.model, self.extra, (augment(x, d),)) for d in drawn]).mean(0)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        to_teacher = F.cross_entropy(logits, target.softmax(1))
        if self.hp.loss == "one-way":
            return to_teacher
        return (to_teacher + F.cross_entropy(target, logits.softmax(1))) / 2

    @torch.no_grad()
    def follow(self) -> None:
        """Move the teacher's weights a little towards the student's."""
        for name, p in self.moving.items():
            self.extra[name].lerp_(p, 1 - self.hp.ema)

    def draw_returning(self) -> dict[str, Tensor]:
        """Draw the entries of each parameter that return to their trained values."""
        return {
            name: send(torch.rand(p.shape, generator=self.generator) < self.hp.restore, p.device)
            for name, p in self.moving.items()
        }

    @torch.no_grad()
    def return_to_start(self, returning: dict[str, Tensor]) -> None:
        for name, p in self.moving.items():
            p.copy_(torch.where(returning[name], self.start[name], p))
