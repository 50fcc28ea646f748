"""TENT. Tent: Fully Test-Time Adaptation by Entropy Minimization. Wang, Shelhamer, Liu, Olshausen, Darrell, ICLR 2021.
https://arxiv.org/abs/2006.10726
"""

from torch import Tensor, nn

from itta.adapters.base import Needs
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.functional.entropy import entropy
from itta.nn.batch_norm import use_batch_statistics


class Tent(GradientAdapter):
    """Batch normalisation uses the batch's statistics; its weights and biases step on mean H(f(x)).

    The prediction is that of the same pass, before its update.
    """

    name = "tent"
    paper = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    needs = Needs(batch_norm=True, batch=2, changes="weights and biases of batch normalisation")
    candidates = tuple({"lr": lr} for lr in (1e-5, 1e-4, 1e-3))
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        use_batch_statistics(self.model.backbone)
        return norm_affine(self.model)

    def adapt(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            logits = self.model.predict(x)
            self.step(entropy(logits).mean())
        return logits
