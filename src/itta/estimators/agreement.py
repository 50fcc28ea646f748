"""Agreement: several answers to an image that agree are more often right.

Assessing Generalization of SGD via Disagreement. Jiang, Nagarajan, Baek, Kolter, ICLR 2022.
https://arxiv.org/abs/2106.13799

The paper compares two trainings of a network. Here the answers are those that itta+ averages: the trained model's, the
restyled model's and the prototypes'. They come from one network, so they agree too often.
"""

import torch

from itta.estimators.base import Estimator, Evidence
from itta.models.stand_ins import StandIns


class Agreement(Estimator):
    """share of images to which all answers are the same."""

    name = "agreement"
    paper = "Jiang et al., ICLR 2022"
    needs_opinions = True

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        same = [p.argmax(1) == evidence.answers for p in evidence.opinions.values()]
        return float(torch.stack(same).all(0).float().mean())
