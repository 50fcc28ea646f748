"""CORAL. Deep CORAL: Correlation Alignment for Deep Domain Adaptation. Sun, Saenko, ECCV 2016 Workshops.
https://arxiv.org/abs/1607.01719

DomainBed's form differs from the paper's: it aligns means as well as covariances, and both distances are means over
entries (1/d and 1/d², not 1/4d²). Here all domains share one pass, and each covariance is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.functional.alignment import coral
from itta.functional.domains import domain_risks
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mmd_gamma: float = hp(1.0, "weight of the distance between domains", power(10, -1, 1))


class CORAL(Algorithm):
    """min ⟨L_e⟩ + γ·⟨‖μ_a − μ_b‖²/d + ‖Σ_a − Σ_b‖²_F/d²⟩ over pairs a < b of domains.

    μ and Σ are the mean and covariance of the features z = f_θ(x).
    """

    name = "coral"
    paper = "Sun and Saenko, Deep CORAL: Correlation Alignment for Deep Domain Adaptation, ECCV 2016 Workshops"
    Hparams = Hparams
    needs = Needs(images=2, single_source="split")

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        sizes = [len(x) for x, _ in batches]
        x, y = self.gather(batches)
        z = self.features(x)
        risk = domain_risks(self.classify(z), y, sizes).mean()
        penalty = coral(z.split(sizes))
        return risk + self.hp.mmd_gamma * penalty, {"loss": risk, "penalty": penalty}
