import numpy as np
import pytest

from itta.metrics.calibration import expected_calibration_error
from itta.metrics.outcome import Outcome

OUTCOME = Outcome(
    indices=np.array([4, 0, 3, 1]),
    labels=np.array([0, 1, 2, 2]),
    predictions=np.array([0, 1, 2, 0]),
    confidence=np.array([0.9, 0.6, 0.7, 0.5]),
    seconds=2.0,
)


def test_accuracy_and_calibration() -> None:
    assert OUTCOME.correct.tolist() == [True, True, True, False]
    assert OUTCOME.accuracy == 0.75
    assert OUTCOME.calibration_error == expected_calibration_error(OUTCOME.confidence, OUTCOME.correct)


@pytest.mark.parametrize("rows", [[0, 3], [True, False, False, True]])
def test_a_part_keeps_images_and_predictions_together(rows: list) -> None:
    part = OUTCOME.part(np.array(rows))
    assert (part.indices.tolist(), part.labels.tolist(), part.predictions.tolist()) == ([4, 1], [0, 2], [0, 0])
    assert part.accuracy == 0.5


def test_running_accuracy_is_a_mean_over_the_last_images() -> None:
    assert OUTCOME.running_accuracy(2).tolist() == [1.0, 1.0, 1.0, 0.5]
    assert OUTCOME.running_accuracy()[-1] == OUTCOME.accuracy  # fewer images than the window
