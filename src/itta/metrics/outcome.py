"""The predictions of one pass over a stream, and the numbers that follow from them."""

from dataclasses import dataclass

import numpy as np

from itta.metrics.accuracy import running_mean
from itta.metrics.calibration import expected_calibration_error


@dataclass(frozen=True)
class Outcome:
    """The predictions of an adapter along a stream, in the order of the stream."""

    indices: np.ndarray  # [N], the number of each image in its data set
    labels: np.ndarray  # [N]
    predictions: np.ndarray  # [N]
    confidence: np.ndarray  # [N], probability of the predicted class
    seconds: float = 0.0  # duration of the whole stream

    @property
    def correct(self) -> np.ndarray:
        return self.predictions == self.labels

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def calibration_error(self) -> float:
        return expected_calibration_error(self.confidence, self.correct)

    def part(self, rows: np.ndarray) -> "Outcome":
        """The predictions for some of the images: ``rows`` holds positions in the stream, or a boolean for each."""
        return Outcome(self.indices[rows], self.labels[rows], self.predictions[rows], self.confidence[rows])

    def running_accuracy(self, window: int = 100) -> np.ndarray:
        """Accuracy over the last ``window`` images, at each image."""
        return running_mean(self.correct, window)
