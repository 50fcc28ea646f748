"""Average confidence: a calibrated model is right as often as it is sure.

On Calibration of Modern Neural Networks. Guo, Pleiss, Sun, Weinberger, ICML 2017. https://arxiv.org/abs/1706.04599

The temperature comes from held-out source images. On a target of another style a model is too sure, and this estimator
does not notice. Tools that watch models in production often use it (NannyML calls it CBPE).
"""

from itta.estimators.base import Estimator, Evidence
from itta.functional.answer_statistics import mean_confidence
from itta.models.stand_ins import StandIns


class AverageConfidence(Estimator):
    """mean over images of max_c p_c."""

    name = "confidence"
    paper = "Guo et al., ICML 2017"

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        return mean_confidence(evidence.before)
