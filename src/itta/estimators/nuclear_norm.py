"""Nuclear norm: right answers are sure ones, and spread over all classes.

Confidence and Dispersity Speak: Characterising Prediction Matrix for Unsupervised Accuracy Estimation. Deng, Suh,
Gould, Zheng, ICML 2023. https://arxiv.org/abs/2302.01094

The paper fits a line from the norm to the accuracy on many test sets. Here the held-out source images give its scale.
"""

from itta.estimators.base import Estimator, Evidence
from itta.functional.answer_statistics import nuclear_norm
from itta.models.stand_ins import StandIns


class NuclearNorm(Estimator):
    """accuracy on held-out source images · ‖P‖_* of the target / ‖P‖_* of these images."""

    name = "nuclear_norm"
    paper = "Deng et al., ICML 2023"
    needs_stand_ins = True

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        assert known is not None
        scale = known.of_clean("accuracy") / known.of_clean("nuclear norm")
        return min(scale * nuclear_norm(evidence.before), 1.0)
