"""MMD. Domain Generalization with Adversarial Feature Learning. Li, Pan, Wang, Kot, CVPR 2018.

DomainBed's form: a sum of Gaussian kernels of fixed widths, without the paper's adversarial autoencoder. Distances are
computed from differences. DomainBed computes ‖u‖² + ‖v‖² − 2u·v, and cancellation spoils the narrow kernels in single
precision (``reference``). The widths are absolute: if ‖z_i − z_j‖² is far above 1000, the penalty has no gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.functional.alignment import mmd
from itta.functional.domains import domain_risks
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mmd_gamma: float = hp(1.0, "weight of the distance between domains", power(10, -1, 1))
    reference: bool = hp(False, "compute distances from the expanded square, at least 1e-30, as DomainBed does")


class MMD(Algorithm):
    """min ⟨L_e⟩ + γ·⟨mean K(a, a) + mean K(b, b) − 2·mean K(a, b)⟩ over pairs of domains, for features z = f_θ(x);

    K(u, v) = Σ_γ exp(−γ‖u − v‖²), γ = 10⁻³, 10⁻², …, 10³.
    """

    name = "mmd"
    paper = "Li et al., Domain Generalization with Adversarial Feature Learning, CVPR 2018"
    Hparams = Hparams
    needs = Needs(single_source="split")

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        sizes = [len(x) for x, _ in batches]
        x, y = self.gather(batches)
        z = self.features(x)
        risk = domain_risks(self.classify(z), y, sizes).mean()
        penalty = mmd(z.split(sizes), expanded=self.hp.reference)
        return risk + self.hp.mmd_gamma * penalty, {"loss": risk, "penalty": penalty}
