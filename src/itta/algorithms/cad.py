"""CAD and CondCAD. Optimal Representations for Covariate Shift. Ruan, Dubois, Maddison, ICLR 2022.
https://arxiv.org/abs/2201.00057

DomainBed's form, in log space, with three differences. ``is_project``, which crashes there, works. Similarities are
relative to the features' mean squared length; DomainBed's grow with it, and those of a network with long features
outweigh the classes until all features are alike (docs/results.md). CAD without ``is_flipped`` does not compare an
image with itself, in DomainBed with similarity 0. ``reference`` is DomainBed's in the last two.
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
    is_normalized: bool = hp(False, "compare directions of the features only")
    is_project: bool = hp(False, "compare a projection of the features, d → d → 128")
    is_flipped: bool = hp(True, "raise the share of other domains, instead of lowering that of one's own")
    reference: bool = hp(
        False, "as DomainBed: similarities of any size; not flipped, CAD counts an image as its own neighbour"
    )


class CAD(Algorithm):
    """With s_ij = z_i·z_j/(T·⟨‖z‖²⟩), over images i that have another of their label in the batch,

    min CE(o, y) + λ·(T/0.07)·⟨−log Σ_{j: other domain} e^s_ij / Σ_{j≠i} e^s_ij⟩_i.

    Not flipped: +log, over j of the same domain. ⟨‖z‖²⟩ is 1 with ``is_normalized``, and left out with ``reference``.
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
        return loss, {"loss": loss.item(), "clf_loss": risk.item(), "bn_loss": bottleneck.item()}

    def bottleneck(self, s: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """B, from all similarities [N, N]; 0 if no image has what it takes."""
        itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
        same_label, same_domain = y[:, None] == y[None, :], domain[:, None] == domain[None, :]
        others = same_label & ~itself if self.conditional else ~itself
        chosen = others & (~same_domain if self.hp.is_flipped else same_domain)
        numerator = s
        if self.hp.reference and not (self.hp.is_flipped or self.conditional):
            chosen, numerator = chosen | itself, s.masked_fill(itself, 0.0)
        has_partner = chosen if self.conditional else same_label & ~itself
        valid = has_partner.any(1) & chosen.any(1) & others.any(1)
        if not valid.any():
            return s.new_zeros(())
        log_share = log_sum(numerator[valid], chosen[valid]) - log_sum(s[valid], others[valid])
        sign = -1 if self.hp.is_flipped else 1
        return sign * self.hp.temperature / BASE_TEMPERATURE * log_share.mean()


class CondCAD(CAD):
    """As CAD among images of the same label: Σ over j ≠ i of i's label below, those of another domain above."""

    name = "condcad"
    paper = "Ruan et al., Optimal Representations for Covariate Shift, ICLR 2022 (conditional)"
    conditional = True


def relative_products(u: Tensor) -> Tensor:
    """u_i·u_j/⟨‖u‖²⟩: the same for longer or shorter features."""
    products = u @ u.T
    return products / products.diagonal().mean().clamp_min(torch.finfo(u.dtype).tiny)


def log_sum(s: Tensor, mask: Tensor) -> Tensor:
    """log Σ_j e^s_ij over the j chosen by the mask; each row has one."""
    return s.masked_fill(~mask, -torch.inf).logsumexp(1)
