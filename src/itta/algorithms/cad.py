"""CAD and CondCAD. Optimal Representations for Covariate Shift. Ruan, Dubois, Maddison, ICLR 2022.
https://arxiv.org/abs/2201.00057

DomainBed's form, in log space, with three differences. (1) ``is_project`` works; in DomainBed it crashes. (2) The
similarities are divided by the features' mean squared length. DomainBed's grow with it: if a network has long features,
they outweigh the classification until all features are equal. (3) Without ``is_flipped``, CAD does not compare an image
with itself; DomainBed does, with similarity 0. ``reference`` does (2) and (3) as DomainBed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.domains import domain_labels
from itta.hparams import choice, hp
from itta.nn.mlp import mlp

BASE_TEMPERATURE = 0.07


@dataclass(frozen=True)
class Hparams(base.Hparams):
    lmbda: float = hp(0.1, "weight of the bottleneck", choice(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2))
    temperature: float = hp(0.1, "temperature of the similarities", choice(0.05, 0.1))
    is_normalized: bool = hp(False, "compare only the directions of the features")
    is_project: bool = hp(False, "compare a projection of the features, d → d → 128")
    is_flipped: bool = hp(True, "raise the share of other domains, instead of lowering the share of the own domain")
    reference: bool = hp(
        False,
        "as DomainBed: similarities grow with the features; without is_flipped, CAD compares an image with itself",
    )


class CAD(Algorithm):
    """With s_ij = z_i·z_j/(T·⟨‖z‖²⟩), and the mean over images i with another image of their label in the batch,

    min CE(o, y) + λ·(T/0.07)·⟨−log Σ_{j: other domain} e^s_ij / Σ_{j≠i} e^s_ij⟩_i.

    Without ``is_flipped``: +log, over j of the same domain. ⟨‖z‖²⟩ is 1 with ``is_normalized``, and absent with
    ``reference``.
    """

    name = "cad"
    paper = "Ruan et al., Optimal Representations for Covariate Shift, ICLR 2022"
    Hparams = Hparams
    needs = Needs(single_source="split", networks=("projection, if is_project",))
    conditional = False

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.project: nn.Module = nn.Identity()
        if hp.is_project:
            self.project = mlp(self.backbone.dim, self.backbone.dim, 128)
            self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        domain = domain_labels([len(x) for x, _ in batches], batches[0][0].device)
        x, y = self.gather(batches)
        z = self.features(x)
        risk = F.cross_entropy(self.classify(z), y)
        u = self.project(z)
        if self.hp.is_normalized:
            u = F.normalize(u, dim=1)
        s = (u @ u.T if self.hp.reference else relative_products(u)) / self.hp.temperature
        bottleneck = self.bottleneck(s, y, domain)
        loss = risk + self.hp.lmbda * bottleneck
        return loss, {"loss": loss, "clf_loss": risk, "bn_loss": bottleneck}

    def bottleneck(self, s: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """Return the bottleneck loss of the similarities [N, N]; 0 if no image has the partners it needs."""
        itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
        same_label, same_domain = y[:, None] == y[None, :], domain[:, None] == domain[None, :]
        others = same_label & ~itself if self.conditional else ~itself
        chosen = others & (~same_domain if self.hp.is_flipped else same_domain)
        numerator = s
        if self.hp.reference and not (self.hp.is_flipped or self.conditional):
            chosen, numerator = chosen | itself, s.masked_fill(itself, 0.0)
        has_partner = chosen if self.conditional else same_label & ~itself
        valid = has_partner.any(1) & chosen.any(1) & others.any(1)
        unused = ~valid[:, None]  # these rows get any partners, which keeps them finite, and count nothing
        log_share = log_sum(numerator, chosen | unused) - log_sum(s, others | unused)
        mean = log_share.where(valid, 0.0).sum() / valid.sum().clamp(min=1)
        sign = -1 if self.hp.is_flipped else 1
        return sign * self.hp.temperature / BASE_TEMPERATURE * mean


class CondCAD(CAD):
    """CAD with sums over images of i's label only: j ≠ i below, and those of other domains above."""

    name = "condcad"
    paper = "Ruan et al., Optimal Representations for Covariate Shift, ICLR 2022 (conditional)"
    conditional = True


def relative_products(u: Tensor) -> Tensor:
    """Return u_i·u_j/⟨‖u‖²⟩, which does not depend on the length of the features."""
    products = u @ u.T
    return products / products.diagonal().mean().clamp_min(torch.finfo(u.dtype).tiny)


def log_sum(s: Tensor, mask: Tensor) -> Tensor:
    """Return log Σ_j e^s_ij over the j in the mask. Each row must have at least one."""
    return s.masked_fill(~mask, -torch.inf).logsumexp(1)
