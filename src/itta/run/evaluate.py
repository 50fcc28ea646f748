"""Run a stream through an adapter once, in order, and measure its accuracy."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from itta.adapters.base import Adapter
from itta.data.dataset import Images
from itta.data.loaders import stream
from itta.errors import InputError
from itta.functional.transfers import fetch, pin
from itta.metrics.outcome import Outcome
from itta.nn.device import device_of
from itta.progress import ReportProgress, silent


def predictions(
    adapter: Adapter, images: Images, indices: Sequence[int] | np.ndarray, batch_size: int, seed: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (indices, labels, predicted classes, probabilities of these) batch by batch."""
    device = device_of(adapter.model)
    for chosen, x, y in stream(images, indices, batch_size, seed, adapter.needs.batch):
        confidence, predicted = answer(adapter, pin(x, device))
        yield chosen, y.numpy(), predicted.numpy(), confidence.numpy()


def answer(adapter: Adapter, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probability and the number of the chosen class of each image; refuse answers that are not numbers.

    The images may be on the host or on the adapter's device. The result is on the host.
    """
    logits = adapter(x).float()
    confidence, predicted, finite = fetch(*torch.softmax(logits, 1).max(1), torch.isfinite(logits).all())
    if not finite:
        raise InputError(
            f"{adapter.name} gives answers that are not finite (NaN): the model's weights, or the adapter's steps, "
            "have overflowed. Train or adapt with a smaller learning rate (--set lr=…)."
        )
    return confidence, predicted


def evaluate(
    adapter: Adapter,
    images: Images,
    indices: Sequence[int] | np.ndarray,
    batch_size: int = 32,
    seed: int | None = 0,
    report: ReportProgress = silent,
) -> Outcome:
    """Reset the adapter and run the whole stream through it, so that no earlier stream has an effect."""
    adapter.reset()
    parts, done, start = [], 0, time.perf_counter()
    for part in predictions(adapter, images, indices, batch_size, seed):
        parts.append(part)
        done += len(part[0])
        report(adapter.name, done, len(indices))
    indices, labels, predicted, confidence = (np.concatenate(column) for column in zip(*parts))
    return Outcome(indices, labels, predicted, confidence, time.perf_counter() - start)
