"""ROID. Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior Correction.
Marsden, Döbler, Yang, WACV 2024. https://arxiv.org/abs/2306.00650

Where we differ: this package's own augmentation makes the views. The prior multiplies probabilities, as in the paper;
the authors' code multiplies logits. As in their code, only images of at least average diversity enter the loss.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_shares, not_fixed
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation
from itta.functional.entropy import entropy
from itta.hparams import hp
from itta.nn.batch_norm import use_batch_statistics

LEAST = 1e-8  # smallest probability in a logarithm, and smallest range in a quotient


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(2.5e-4, "learning rate")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    momentum: float = hp(0.9, "momentum of SGD")
    keep: float = hp(0.99, "α: share of the adapted weights after a step; the rest comes from the trained model")
    ema: float = hp(0.9, "β: share of the old mean prediction after a batch")
    temperature: float = hp(1 / 3, "τ: a smaller value gives certain and diverse images more weight")
    consistency: bool = hp(True, "learn from an augmented view of each image as well")
    prior: bool = hp(True, "weigh the prediction by the batch's class prior")


class ROID(GradientAdapter):
    """Tent's scope with the loss Σ_i w_i·(SLR_i + SCE_i)/B. With p the prediction and p̄ its running mean:

    SLR = −Σ_c p_c·log(p_c/Σ_{j≠c} p_j), SCE(p, p') = −½·Σ_c (p'_c·log p_c + p_c·log p'_c), p' of an augmented view,
    w = exp(d·s/τ), d = 1 − cos(p, p̄) and s = −H(p), each scaled to [0, 1] over the batch; w = 0 for d below its mean.

    After the step θ ← α·θ + (1 − α)·θ⁰. The prediction is that of the pass before it, times the smoothed prior of the
    batch, (q + γ)/(1 + γ·K) with q the mean of p and γ = max(1/B, 1/K)/max q.
    """

    name = "roid"
    paper = (
        "Marsden et al., Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior "
        "Correction, WACV 2024"
    )
    Hparams = Hparams
    needs = Needs(batch_norm=True, batch=2, changes="weights and biases of batch normalisation")
    candidates = tuple({"lr": lr} for lr in (2.5e-5, 2.5e-4, 2.5e-3))
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        check_shares(self.hp, "keep", "ema")
        if not self.hp.temperature > 0:
            raise InputError(f"temperature must be above 0, got {self.hp.temperature}.")
        use_batch_statistics(self.model.backbone)
        return norm_affine(self.model)

    def fresh(self) -> dict[str, Tensor]:
        like, classes = next(self.model.parameters()), self.model.n_classes
        return {"mean": like.new_full((classes,), 1 / classes)}

    def adapt(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            logits = self.model.predict(x)
            weights = self.weigh(logits.detach())
            chosen = (weights > 0).nonzero()[:, 0]
            losses = soft_likelihood_ratio(logits[chosen])
            if self.hp.consistency:
                drawn = draw_augmentation(len(chosen), self.generator)
                losses = losses + symmetric_cross_entropy(self.model.predict(augment(x[chosen], drawn)), logits[chosen])
            self.step((weights[chosen] * losses).sum() / len(x))
            self.pull_back()
        return logits + smoothed_prior(logits.detach()).log() if self.hp.prior else logits

    def weigh(self, logits: Tensor) -> Tensor:
        """Return w, [B], and update the running mean."""
        p, mean = logits.softmax(1), self.extra["mean"]
        diversity = to_unit_range(1 - F.cosine_similarity(p, mean.unsqueeze(0)))
        weights = (diversity * to_unit_range(-entropy(logits)) / self.hp.temperature).exp()
        self.extra["mean"] = torch.lerp(p.mean(0), mean, self.hp.ema)
        return torch.where(diversity < diversity.mean(), 0.0, weights)

    @torch.no_grad()
    def pull_back(self) -> None:
        """Take a step towards the trained model (weight ensembling)."""
        for name, p in self.moving.items():
            p.copy_(torch.lerp(self.start[name], p, self.hp.keep))

    def freeze(self) -> nn.Module:
        raise not_fixed(self.name, "its batch normalisation uses the statistics of each batch")


def to_unit_range(values: Tensor) -> Tensor:
    """Map the smallest value to 0 and the largest to 1; equal values to 0."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp(min=LEAST)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Return −Σ_c p_c·log(p_c/(1 − p_c)), [B]."""
    p = logits.softmax(1)
    return -(p * (p.clamp(min=LEAST).log() - (1 - p).clamp(min=LEAST).log())).sum(1)


def symmetric_cross_entropy(logits: Tensor, others: Tensor) -> Tensor:
    """Return −½·Σ_c (p'_c·log p_c + p_c·log p'_c), [B]."""
    log_p, log_q = logits.log_softmax(1), others.log_softmax(1)
    return -0.5 * (log_q.exp() * log_p + log_p.exp() * log_q).sum(1)


def smoothed_prior(logits: Tensor) -> Tensor:
    """Return the batch's mean prediction, smoothed towards equal classes; a smaller batch is smoothed more; [C].

    >>> smoothed_prior(torch.tensor([[0.9, 0.1], [0.7, 0.3]]).log())
    tensor([0.6333, 0.3667])
    """
    (images, classes), mean = logits.shape, logits.softmax(1).mean(0)
    smoothing = max(1 / images, 1 / classes) / mean.max()
    return (mean + smoothing) / (1 + smoothing * classes)
