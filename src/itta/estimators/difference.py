"""Difference of confidences: accuracy falls by as much as confidence does.

Predicting with Confidence on Unseen Distributions. Guillory, Shankar, Ebrahimi, Darrell, Schmidt, ICCV 2021.
https://arxiv.org/abs/2107.03315
"""

from itta.estimators.base import Estimator, Evidence
from itta.functional.answer_statistics import mean_confidence
from itta.models.stand_ins import StandIns


class DifferenceOfConfidences(Estimator):
    """accuracy on held-out source images − (their mean confidence − the target's)."""

    name = "difference"
    paper = "Guillory et al., ICCV 2021"
    needs_stand_ins = True

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        assert known is not None
        fall = known.of_clean("confidence") - mean_confidence(evidence.before)
        return min(max(known.of_clean("accuracy") - fall, 0.0), 1.0)
