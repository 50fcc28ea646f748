"""ERM: Empirical Risk Minimization. Vapnik, "An overview of statistical learning theory", 1999.

Cross-entropy over the images of all source domains together: the baseline of DomainBed.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from itta.algorithms.base import Algorithm, Batch, Logs


class ERM(Algorithm):
    """min CE(f_φ(f_θ(x)), y), with equal weight for every image."""

    name = "erm"
    paper = "Vapnik, An overview of statistical learning theory, 1999"

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        loss = F.cross_entropy(self.predict(x), y)
        return loss, {"loss": loss}
