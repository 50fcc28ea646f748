"""SAR. Towards Stable Test-Time Adaptation in Dynamic Wild World.
Niu, Wu, Zhang, Wen, Chen, Zhao, Tan, ICLR 2023. https://arxiv.org/abs/2302.12400

Where we differ: the loss below which it starts anew is a share of ln K, as the margin is; the paper's 0.2 is for 1000
classes, and a healthy model of a few classes is often below it. The learning rate shrinks for batches below 32 images
by one rule, n/32. Of a transformer only the last block stays out, not the last three. Where no image is left, the first
time or the second, there is no step.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.hparams import hp
from itta.nn.batch_norm import has_batch_norm, use_batch_statistics

FULL_BATCH = 32


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(2.5e-4, "learning rate; for batches of n < 32 images times n/32")
    optimizer: Literal["adam", "sgd"] = hp("sgd", "adam, or plain SGD")
    momentum: float = hp(0.9, "momentum of SGD")
    margin: float = hp(0.4, "images are learned from if their entropy is below this share of ln(classes)")
    rho: float = hp(0.05, "ρ, how far the weights are moved to find where the loss is sharp")
    recover: float = hp(0.029, "start anew when the running mean of the loss is below this share of ln(classes)")


class SAR(GradientAdapter):
    """Norm weights and biases before the last block step on the entropy of sure images, where it is flat too.

    E0 = margin · ln K; S = {x : H(x; θ) < E0}; g = ∇ mean_S H(x; θ); θ̂ = θ + ρ g / ‖g‖;

    step θ on the gradient at θ̂ of L = mean of H(x; θ̂) over the x in S with H(x; θ̂) < E0;

    e ← 0.9 e + 0.1 L, at first L; if e < recover · ln K, the model has collapsed: back to the start.

    Batch normalisation reads the batch's statistics. The prediction is that of the first pass, before its update.
    """

    name = "sar"
    paper = "Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023"
    Hparams = Hparams
    needs = Needs(changes="weights and biases of normalisation, but for the last block's")
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        if not self.hp.margin > 0:
            raise InputError(f"margin must be above 0, got {self.hp.margin}: no image would be kept.")
        check_at_least(0, self.hp, "rho", "recover")
        log_k = math.log(self.model.task.n_classes)
        self.e0, self.collapsed = self.hp.margin * log_k, self.hp.recover * log_k
        use_batch_statistics(self.model.backbone)
        last = {id(p) for p in self.model.backbone.last_block.parameters()}
        moving = {name: p for name, p in norm_affine(self.model).items() if id(p) not in last}
        if not moving:
            raise InputError(
                "sar adapts normalisation layers before the last block, and this model's backbone has none: "
                "choose another adapter."
            )
        return moving

    def check(self, x: Tensor) -> None:
        super().check(x)
        if len(x) == 1 and has_batch_norm(self.model.backbone):
            raise InputError(
                "sar needs at least 2 images at a time for batch normalisation, got 1: send larger batches, "
                "or take a backbone with another normalisation."
            )

    def adapt(self, x: Tensor) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = self.hp.lr * min(1.0, len(x) / FULL_BATCH)
        for _ in range(self.hp.steps):
            logits = self.model.predict(x)
            h = entropy(logits)
            sure = h.detach() < self.e0
            if not sure.any():
                break
            h = entropy(functional_call(self.model, self.uphill(h[sure].mean()), (x,)))[sure]
            h = h[h.detach() < self.e0]
            if len(h) == 0:
                break
            loss = h.mean()
            self.step(loss)
            self.recover(loss.detach())
        return logits

    def uphill(self, loss: Tensor) -> dict[str, Tensor]:
        """θ̂ = θ + ρ g / ‖g‖, by name and as a function of θ, which itself stays where it is."""
        g = torch.autograd.grad(loss, list(self.moving.values()), materialize_grads=True)
        scale = self.hp.rho / (torch.stack([part.norm() for part in g]).norm() + 1e-12)
        return {name: p + scale * part for (name, p), part in zip(self.moving.items(), g)}

    def recover(self, loss: Tensor) -> None:
        """Go back to the start if the running mean of the loss tells that all images get the same sure answer."""
        self.extra["loss"] = 0.9 * self.extra["loss"] + 0.1 * loss if self.extra else loss
        if self.extra["loss"] < self.collapsed:
            self.forget()
            self.extra = self.fresh()
