"""SelfReg. SelfReg: Self-supervised Contrastive Regularization for Domain Generalization.
Kim, Park, Kim, Lee, ICCV 2021. https://arxiv.org/abs/2104.09841

DomainBed's form, without the authors' weight averaging and curriculum. As there, the projector is random and never
learns, though its batch normalisation is live; ``selfreg_train_projector`` lets it learn. The older form has no
projector and one term: ``selfreg_variant=features``. The ITTA paper may have run that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.hparams import hp
from itta.nn.style_mixing import draw_beta


@dataclass(frozen=True)
class Hparams(base.Hparams):
    selfreg_variant: Literal["full", "features"] = hp("full", "full: all terms; features: only CE + 0.3·MSE(z, z_a)")
    selfreg_train_projector: bool = hp(False, "let the projector learn")


class SelfRegDraw(NamedTuple):
    a: Tensor  # [N], partners of the same class
    b: Tensor
    lam: Tensor  # a number


class SelfReg(Algorithm):
    """With partners a, b of the same class, projections v = h(z), λ ~ Beta(½, ½) and the constant κ = min(CE, 1):

    min CE(o, y) + κ·{λ·[MSE(o, o_a) + 0.3·MSE(z, v_a)]
                      + (1−λ)·[MSE(o, λo_a + (1−λ)o_b) + 0.3·MSE(z, λv_a + (1−λ)v_b)]}.
    """

    name = "selfreg"
    paper = "Kim et al., SelfReg: Self-supervised Contrastive Regularization for Domain Generalization, ICCV 2021"
    Hparams = Hparams
    needs = Needs(batch=2, networks=("projector",))

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        if hp.selfreg_variant == "features":
            return
        self.projector = projector(self.backbone.dim).requires_grad_(hp.selfreg_train_projector)
        learned = [p for p in self.parameters() if p.requires_grad]
        self.add_optimizer("main", learned, hp.lr, hp.weight_decay)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        draw = draw_selfreg(y)
        z = self.features(x)
        logits = self.classify(z)
        loss = F.cross_entropy(logits, y)
        if self.hp.selfreg_variant == "features":
            loss = loss + 0.3 * F.mse_loss(z, z[draw.a])
            return loss, {"loss": loss}
        v, lam = self.projector(z), float(draw.lam)
        one = F.mse_loss(logits, logits[draw.a]) + 0.3 * F.mse_loss(z, v[draw.a])
        two = F.mse_loss(logits, blend(logits, draw)) + 0.3 * F.mse_loss(z, blend(v, draw))
        loss = loss + loss.detach().clamp(max=1.0) * (lam * one + (1 - lam) * two)
        return loss, {"loss": loss}


def draw_selfreg(y: Tensor) -> SelfRegDraw:
    """Draw two partners of the same class for each image, and λ. An image alone in its class is its own partner."""
    return SelfRegDraw(permute_within(y), permute_within(y), draw_beta(1, 0.5)[0])


def permute_within(y: Tensor) -> Tensor:
    """Draw a permutation that maps each entry to an entry of the same class."""
    shuffled = torch.randperm(len(y), device=y.device)
    by_class = shuffled[y[shuffled].argsort(stable=True)]
    partner = torch.empty_like(by_class)
    partner[y.argsort(stable=True)] = by_class
    return partner


def blend(values: Tensor, draw: SelfRegDraw) -> Tensor:
    lam = float(draw.lam)
    return lam * values[draw.a] + (1 - lam) * values[draw.b]


def projector(dim: int) -> nn.Sequential:
    """Build h: three linear layers, each with batch normalisation."""
    width = dim if dim == 2048 else 2 * dim
    return nn.Sequential(
        nn.Linear(dim, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, dim), nn.BatchNorm1d(dim),
    )  # fmt: skip
