"""Feed a stream to an adapter once, in order, and keep score."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from itta.adapters.base import Adapter
from itta.data.dataset import Images
from itta.data.loaders import stream
from itta.metrics.accuracy import running_share
from itta.metrics.calibration import expected_calibration_error


@dataclass(frozen=True)
class Outcome:
    """What an adapter said along a stream, in the stream's order."""

    indices: np.ndarray  # [N], which image
    labels: np.ndarray  # [N]
    predictions: np.ndarray  # [N]
    confidence: np.ndarray  # [N], probability of the predicted class
    seconds: float = 0.0  # that the stream took

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
        """What was said about some of the images: numbers of rows, or yes and no for each."""
        return Outcome(self.indices[rows], self.labels[rows], self.predictions[rows], self.confidence[rows])

    def running_accuracy(self, window: int = 100) -> np.ndarray:
        """Accuracy over the last ``window`` images, at each image."""
        return running_share(self.correct, window)


def predictions(
    adapter: Adapter, images: Images, indices: Sequence[int] | np.ndarray, batch_size: int, seed: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (indices, labels, predicted classes, their probability) batch by batch."""
    for chosen, x, y in stream(images, indices, batch_size, seed, adapter.needs.batch):
        confidence, predicted = torch.softmax(adapter(x).float(), 1).max(1)
        yield chosen, y.numpy(), predicted.numpy(), confidence.numpy()


def evaluate(
    adapter: Adapter,
    images: Images,
    indices: Sequence[int] | np.ndarray,
    batch_size: int = 32,
    seed: int | None = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Run the whole stream from a fresh adapter, so nothing leaks in from an earlier one."""
    adapter.reset()
    parts, done, start = [], 0, time.perf_counter()
    for part in predictions(adapter, images, indices, batch_size, seed):
        parts.append(part)
        done += len(part[0])
        report(done, len(indices))
    indices, labels, predicted, confidence = (np.concatenate(column) for column in zip(*parts))
    return Outcome(indices, labels, predicted, confidence, time.perf_counter() - start)
