"""SD, spectral decoupling. Gradient Starvation: A Learning Proclivity in Neural Networks.
Pezeshki, Kaba, Bengio, Courville, Precup, Lajoie, NeurIPS 2021. https://arxiv.org/abs/2011.09468

As in DomainBed, the penalty is a mean over images and classes: the paper's λ/2·‖o‖² is sd_reg = λ·classes/2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    sd_reg: float = hp(0.1, "weight of the penalty on logits", power(10, -5, -1))


class SD(Algorithm):
    """min CE(o, y) + λ·mean(o²), with logits o."""

    name = "sd"
    paper = "Pezeshki et al., Gradient Starvation: A Learning Proclivity in Neural Networks, NeurIPS 2021"
    Hparams = Hparams

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        logits = self.predict(x)
        loss = F.cross_entropy(logits, y)
        penalty = logits.square().mean()
        return loss + self.hp.sd_reg * penalty, {"loss": loss, "penalty": penalty}
