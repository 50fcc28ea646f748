"""MixStyle. Domain Generalization with MixStyle. Zhou, Yang, Qiao, Xiang, ICLR 2021. https://arxiv.org/abs/2104.02008

ERM with mixed styles of the feature maps after the first blocks. Partners are drawn from the whole batch (the paper's
random mode), so with several domains styles mix across domains. The optimiser is DomainBed's Adam, not the paper's SGD.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.hparams import hp
from itta.nn.style_mixing import draw_mix, mix_style


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mix_p: float = hp(0.5, "probability of mixing after each of the first three blocks")
    mix_alpha: float = hp(0.1, "α of Beta(α, α), which draws the share of an image's own style")


class MixStyle(Algorithm):
    """CE on features with mixed styles: after each of the first three blocks, with probability p,

    z ← (z − μ)/σ·σ_mix + μ_mix,  μ_mix = λμ + (1−λ)μ_partner,  σ_mix = λσ + (1−λ)σ_partner,  λ ~ Beta(α, α).
    """

    name = "mixstyle"
    paper = "Zhou et al., Domain Generalization with MixStyle, ICLR 2021"
    Hparams = Hparams
    needs = Needs(batch=2)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        mixed = self.backbone.block_names[:3]
        draws = {b: draw_mix(len(x), (b,), self.hp.mix_alpha) for b in mixed if torch.rand(()) < self.hp.mix_p}
        z = self.features(x, lambda block, z: mix_style(z, draws[block]) if block in draws else z)
        loss = F.cross_entropy(self.head(z), y)
        return loss, {"loss": loss}
