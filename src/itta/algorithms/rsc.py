"""RSC. Self-Challenging Improves Cross-Domain Generalization. Huang, Wang, Xing, Huang, ECCV 2020.
https://arxiv.org/abs/2007.02454

As in DomainBed, it acts on the feature vector, with signed gradients, and the loss uses the muted pass only.
Comparisons are strict, so at least one feature and one image are always muted. If features cannot be negative, muting
lowers the logit of the class by more the larger the muted features are. This can make the network shrink all features:
a new head may need many steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs
from itta.hparams import hp, uniform


@dataclass(frozen=True)
class Hparams(base.Hparams):
    rsc_f_drop_factor: float = hp(1 / 3, "share of the features to mute", uniform(0, 0.5))
    rsc_b_drop_factor: float = hp(1 / 3, "share of the images with muted features", uniform(0, 0.5))


class RSC(Algorithm):
    """g_i = ∂o_i[y_i]/∂z_i;  m_i = 1[g_i < its (1−f)-quantile] mutes the features with the largest g_i;

    Δ_i = p_i[y_i] − (p_i[y_i] with features muted); images with Δ_i below its (1−b)-quantile keep all features;
    min CE(f_φ(z ∘ M), y), with a constant mask M.
    """

    name = "rsc"
    paper = "Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020"
    Hparams = Hparams

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        z = self.features(x)
        loss = F.cross_entropy(self.classify(z * self.mask(z.detach(), y)), y)
        return loss, {"loss": loss}

    def mask(self, z: Tensor, y: Tensor) -> Tensor:
        """Return M [N, d], of ones and zeros."""
        z = z.requires_grad_()
        logits = self.classify(z)
        rows = torch.arange(len(y), device=y.device)
        (g,) = torch.autograd.grad(logits[rows, y].sum(), z)
        with torch.no_grad():
            keep = g < g.quantile(1 - self.hp.rsc_f_drop_factor, dim=1, keepdim=True)
            muted = self.classify(z * keep)
            fall = logits.softmax(1)[rows, y] - muted.softmax(1)[rows, y]
            untouched = fall < fall.quantile(1 - self.hp.rsc_b_drop_factor)
            return (keep | untouched[:, None]).to(z)
