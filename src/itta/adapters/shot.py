"""SHOT, online. Do We Really Need to Access the Source Data? Source Hypothesis Transfer for Unsupervised Domain
Adaptation. Liang, Hu, Feng, ICML 2020. https://arxiv.org/abs/2002.08546

Three things differ here. The paper trains for epochs on the whole target set, with pseudo-labels from clustered
features. Here each batch is seen once, and the optional pseudo-labels are the model's own confident predictions, as in
the comparison of the T3A paper. The entropies are exact, without the 1e-5 inside the logarithm. Batch normalisation
keeps the statistics of training.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import whole_backbone
from itta.errors import InputError
from itta.functional.entropy import entropy, entropy_of_mean
from itta.hparams import hp


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(5e-5, "learning rate; try that of training, times 0.1, 1 or 10")
    pseudo_label: float = hp(0.0, "weight of the pseudo-label term; 0 is SHOT-IM, 0.1 is online SHOT")
    threshold: float = hp(0.9, "the pseudo-label term uses predictions with more confidence than this")


class SHOT(GradientAdapter):
    """The backbone steps on mean H(p) − H(mean p) [+ w·CE(p, argmax p) over confident predictions]; the head is fixed.

    The prediction is that of the same pass, before its update.
    """

    name = "shot"
    paper = "Liang et al., Do We Really Need to Access the Source Data?, ICML 2020"
    Hparams = Hparams
    # for one image both entropies are equal, so there would be nothing to learn
    needs = Needs(batch=2, changes="the backbone")
    predicts = "before"

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(0, self.hp, "pseudo_label")
        if not 0 <= self.hp.threshold < 1:
            raise InputError(f"threshold must be at least 0 and below 1, got {self.hp.threshold}.")
        return whole_backbone(self.model)

    def adapt(self, x: Tensor) -> Tensor:
        for _ in range(self.hp.steps):
            logits = self.model.predict(x)
            loss = entropy(logits).mean() - entropy_of_mean(logits)
            if self.hp.pseudo_label > 0:
                loss = loss + self.hp.pseudo_label * pseudo_label_loss(logits, self.hp.threshold)
            self.step(loss)
        return logits


def pseudo_label_loss(logits: Tensor, threshold: float) -> Tensor:
    """Return the mean cross-entropy to the predicted class over predictions above the threshold; 0 if there is none."""
    confidence, label = logits.detach().softmax(1).max(1)
    sure = confidence > threshold
    return (F.cross_entropy(logits, label, reduction="none") * sure).sum() / sure.sum().clamp(min=1)
