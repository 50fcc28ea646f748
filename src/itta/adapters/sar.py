"""SAR. Towards Stable Test-Time Adaptation in Dynamic Wild World.
Niu, Wu, Zhang, Wen, Chen, Zhao, Tan, ICLR 2023. https://arxiv.org/abs/2302.12400

Four things differ here. The loss below which SAR resets is a share of ln K, like the margin; the paper's 0.2 is for
1000 classes, and a good model of few classes is often below it. For batches of n < 32 images the learning rate has the
factor n/32, for all networks. In a transformer only the last block does not change; in the paper the last three do not.
If no image is left after the first or the second filter, there is no step.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.functional.transfers import fetch
from itta.hparams import hp
from itta.nn.batch_norm import has_batch_norm, use_batch_statistics

FULL_BATCH = 32


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(2.5e-4, "learning rate; multiplied by n/32 for batches of n < 32 images")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    momentum: float = hp(0.9, "momentum of SGD")
    margin: float = hp(0.4, "learn from images with an entropy below this share of ln(classes)")
    rho: float = hp(0.05, "ρ: distance from the weights at which the gradient is computed")
    recover: float = hp(0.029, "reset if the running mean of the loss is below this share of ln(classes)")


class SAR(GradientAdapter):
    """Norm weights and biases before the last block take sharpness-aware steps on the entropy of confident images.

    E0 = margin · ln K; S = {x : H(x; θ) < E0}; g = ∇ mean_S H(x; θ); θ̂ = θ + ρ g / ‖g‖;

    step θ on the gradient at θ̂ of L = mean of H(x; θ̂) over the x in S with H(x; θ̂) < E0;

    e ← 0.9 e + 0.1 L, the first e is L; if e < recover · ln K, the model has collapsed and is reset.

    Batch normalisation uses the batch's statistics. The prediction is that of the first pass, before its update.
    """

    name = "sar"
    paper = "Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023"
    Hparams = Hparams
    needs = Needs(changes="weights and biases of normalisation, except in the last block")
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        if not self.hp.margin > 0:
            raise InputError(f"margin must be above 0, got {self.hp.margin}: no image would be kept.")
        check_at_least(0, self.hp, "rho", "recover")
        log_k = math.log(self.model.n_classes)
        self.e0, self.collapsed = self.hp.margin * log_k, self.hp.recover * log_k
        use_batch_statistics(self.model.backbone)
        last = {id(p) for p in self.model.backbone.last_block.parameters()}
        moving = {name: p for name, p in norm_affine(self.model).items() if id(p) not in last}
        if not moving:
            raise InputError(
                "sar needs a backbone with normalisation layers before the last block, and this model's has none: "
                "choose another adapter."
            )
        return moving

    def check(self, x: Tensor) -> None:
        super().check(x)
        if len(x) == 1 and has_batch_norm(self.model.backbone):
            raise InputError(
                "sar needs at least 2 images at a time for batch normalisation, got 1: send larger batches, "
                "or choose a backbone with another normalisation."
            )

    def adapt(self, x: Tensor) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = self.hp.lr * min(1.0, len(x) / FULL_BATCH)
        for _ in range(self.hp.steps):
            logits = self.model.predict(x)
            h = entropy(logits)
            sure = h.detach() < self.e0
            if sure.device.type == "cpu" and not sure.any():  # elsewhere the host would wait for the answer
                break
            h = entropy(functional_call(self.model, self.uphill(mean_where(sure, h)), (x,)))
            still = sure & (h.detach() < self.e0)
            loss = mean_where(still, h)
            mean = self.running_loss(loss.detach())
            some, collapsed = fetch(still.any(), mean < self.collapsed)
            if not some:
                break
            self.step(loss)
            self.extra["loss"] = mean
            if collapsed:  # all images get the same confident prediction
                self.forget()
                self.extra = self.fresh()
        return logits

    def uphill(self, loss: Tensor) -> dict[str, Tensor]:
        """Return θ̂ = θ + ρ g / ‖g‖ by name, as a function of θ. θ itself does not change."""
        g = torch.autograd.grad(loss, list(self.moving.values()), materialize_grads=True)
        scale = self.hp.rho / (torch.stack([part.norm() for part in g]).norm() + 1e-12)
        return {name: p + scale * part for (name, p), part in zip(self.moving.items(), g)}

    def running_loss(self, loss: Tensor) -> Tensor:
        """Return e with the loss of this step."""
        return 0.9 * self.extra["loss"] + 0.1 * loss if self.extra else loss


def mean_where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the mean of the values under the mask, or 0 if there are none. The host need not know how many there are.

    >>> mean_where(torch.tensor([True, False, True]), torch.tensor([1.0, 7.0, 2.0]))
    tensor(1.5000)
    """
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
