"""EATA, and ETA with ``fisher=0``. Efficient Test-Time Model Adaptation without Forgetting.
Niu, Wu, Zhang, Chen, Zheng, Zhao, Tan, ICML 2022. https://arxiv.org/abs/2204.02610

Three things differ here. The similarity above which an image is redundant is in units of 1/√K, the similarity of a
certain prediction to an even mix of K classes. 1.6 units are the paper's 0.05 for 1000 classes; with few classes, 0.05
would reject every image. The Fisher information comes from 64 images of each source domain, one batch at a time,
because batch statistics make the images of a batch depend on each other. A reset also clears the mean of past
predictions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.hparams import hp
from itta.nn.batch_norm import use_batch_statistics


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(2.5e-4, "learning rate")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    momentum: float = hp(0.9, "momentum of SGD")
    margin: float = hp(0.4, "learn from images with an entropy below this share of ln(classes)")
    redundancy: float = hp(1.6, "and with a similarity to the mean of past predictions below this / √classes")
    fisher: float = hp(2000.0, "β, weight of the penalty for leaving the trained weights; 0 turns it off (ETA)")


class EATA(GradientAdapter):
    """Tent that learns only from confident images unlike earlier ones, with a penalty for leaving the trained θ⁰.

    E0 = margin · ln K; keep x if H(x) < E0 and cos(p(x), m) < redundancy / √K;

    step on  mean over the kept of exp(E0 − H) · H  +  β Σ_i F_i (θ_i − θ_i⁰)²,  with constant weights exp(·);

    m ← 0.9 m + 0.1 · (mean of p over the kept), after every step; the first m is that mean.

    If no image is kept, there is no step. The prediction is that of the same pass, before its update.
    """

    name = "eata"
    paper = "Niu et al., Efficient Test-Time Model Adaptation without Forgetting, ICML 2022"
    Hparams = Hparams
    needs = Needs(
        batch_norm=True,
        batch=2,
        source="Fisher information, unless fisher=0",
        changes="weights and biases of batch normalisation",
    )
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        for name in ("margin", "redundancy"):
            if not getattr(self.hp, name) > 0:
                raise InputError(f"{name} must be above 0, got {getattr(self.hp, name)}: no image would be kept.")
        check_at_least(0, self.hp, "fisher")
        n_classes = self.model.n_classes
        self.e0, self.alike = self.hp.margin * math.log(n_classes), self.hp.redundancy / math.sqrt(n_classes)
        use_batch_statistics(self.model.backbone)
        moving = norm_affine(self.model)
        self.fisher = self.stored_fisher(moving) if self.hp.fisher > 0 else {}
        return moving

    def stored_fisher(self, moving: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """Return the Fisher information that is stored with the model."""
        stored = self.model.fisher or {}
        if not moving.keys() <= stored.keys():
            raise InputError(
                "eata needs a model with Fisher information, and this one has none: train it again with this version, "
                "call itta.collect(model, source_batches) for a wrapped one, or set fisher=0, which is ETA."
            )
        return {name: stored[name].to(p) for name, p in moving.items()}

    def adapt(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            m = self.extra.get("m")  # every step moves it, so a later step of the batch sees the earlier ones
            logits = self.model.predict(x)
            kept = logits[self.worth_learning(logits.detach(), m).nonzero()[:, 0]]  # numbers: a mask is read twice
            if len(kept) == 0:
                break
            p = kept.detach().softmax(1).mean(0)
            self.extra["m"] = p if m is None else 0.9 * m + 0.1 * p
            self.step(self.loss(kept))
        return logits

    def worth_learning(self, logits: Tensor, m: Tensor | None) -> Tensor:
        """Tell which predictions are confident, and unlike the mean of earlier steps."""
        sure = entropy(logits) < self.e0
        return sure if m is None else sure & (F.cosine_similarity(logits.softmax(1), m[None]) < self.alike)

    def loss(self, kept: Tensor) -> Tensor:
        h = entropy(kept)
        loss = ((self.e0 - h.detach()).exp() * h).mean()
        pull = [(f * (self.moving[name] - self.start[name]).square()).sum() for name, f in self.fisher.items()]
        return loss + self.hp.fisher * torch.stack(pull).sum() if pull else loss

    def forget(self) -> None:
        super().forget()
        self.extra = self.fresh()  # the updates from earlier images are gone, so no image is redundant
