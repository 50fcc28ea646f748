"""ATC: the share of images with an entropy below a threshold that fits on held-out source images.

Leveraging Unlabeled Data to Predict Out-of-Distribution Performance. Garg, Balakrishnan, Lipton, Neyshabur, Sedghi,
ICLR 2022. https://arxiv.org/abs/2201.04234
"""

from itta.estimators.base import Estimator, Evidence
from itta.functional.answer_statistics import negative_entropy, share_above
from itta.models.stand_ins import StandIns


class AverageThresholdedConfidence(Estimator):
    """share of images with Σ p·log p > t, where t is exceeded by as many held-out images as are answered right."""

    name = "atc"
    paper = "Garg et al., ICLR 2022"
    needs_stand_ins = True

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        assert known is not None
        return share_above(negative_entropy(evidence.before), known.threshold)
