"""MTL. Domain Generalization by Marginal Transfer Learning. Blanchard, Deshmukh, Dogan, Lee, Scott, JMLR 2021.
https://arxiv.org/abs/1711.07910

This is the form that DomainBed intends. DomainBed's code overwrites the domain's mean by noise, in training and in
prediction, so the running mean has no effect and predictions are random (``reference``). A prediction uses the mean of
its own batch, so it depends on the batch. For one image the mean is the image's own feature vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.domains import domain_risks
from itta.hparams import choice, hp


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mtl_ema: float = hp(0.99, "weight of the present batch in the domain's running mean", choice(0.5, 0.9, 0.99, 1.0))
    reference: bool = hp(False, "give the head noise instead of the domain's mean, as DomainBed does")


class MTL(Algorithm):
    """min Σ_e CE(f_φ([z, m_e]), y) with m_e = a·mean(z over domain e) + (1−a)·E_e, then E_e ← m_e; E starts at 0.

    Predict f_φ([z, mean of the batch's z]).
    """

    name = "mtl"
    paper = "Blanchard et al., Domain Generalization by Marginal Transfer Learning, JMLR 2021"
    Hparams = Hparams
    needs = Needs(batch_prediction=True)

    embeddings: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.head = task.make_head(2 * self.backbone.dim, task.n_classes)
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)
        self.register_buffer("embeddings", torch.zeros(self.n_domains, self.backbone.dim))

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        sizes = [len(x) for x, _ in batches]
        x, y = self.gather(batches)
        z = self.features(x)
        means = torch.stack([part.mean(0) for part in z.split(sizes)])  # [S, d]
        means = self.hp.mtl_ema * means + (1 - self.hp.mtl_ema) * self.embeddings
        self.embeddings = means.detach()
        context = torch.cat([mean.expand(n, -1) for mean, n in zip(means, sizes)])
        logits = self.head(torch.cat([z, self.disturbed(context)], 1))
        loss = domain_risks(logits, y, sizes).sum()
        return loss, {"loss": loss}

    def classify(self, z: Tensor) -> Tensor:
        context = z.mean(0, keepdim=True).expand_as(z)
        return self.head(torch.cat([z, self.disturbed(context)], 1))

    def disturbed(self, context: Tensor) -> Tensor:
        return torch.randn_like(context) if self.hp.reference else context
