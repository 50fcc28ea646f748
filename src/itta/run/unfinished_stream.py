"""The answers to a stream so far, without and with adaptation, in memory and on disk.

A file beside the results holds the answers and the adapter's state while the stream runs. After an interruption, the
same command goes on from there, and no earlier image is read again. The guard's log and the diagnosis for the page are
not in the file: they begin with the images after the interruption. There is no estimate then.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from itta.adapters.base import Adapter
from itta.errors import InputError
from itta.files import make_folder
from itta.metrics.outcome import Outcome
from itta.nn.optimizer import with_prefix, without_prefix
from itta.schema import conform
from itta.store.tensors import load_tensors, save_tensors

UNFINISHED = "adapt.unfinished"
EVERY = 2.0  # seconds between two states
ARRAYS = ("predictions", "confidence")
SHARE = 20  # the time between two states is at least this many times the time that writing one takes


@dataclass(frozen=True)
class Facts:
    """The values in the file that are not tensors."""

    command: str  # all that the answers depend on
    done: Annotated[int, Meta(ge=0)]
    seconds: tuple[float, float]


class Answers:
    """Answers to N images, before and after adaptation, in the order of the stream; 16 bytes for each image."""

    def __init__(self, images: int) -> None:
        self.done, self.seconds = 0, np.zeros(2)
        self.predictions = np.zeros((2, images), dtype=np.int32)
        self.confidence = np.zeros((2, images), dtype=np.float32)

    def add(self, answers: Sequence[tuple[Tensor, Tensor]], seconds: Sequence[float]) -> None:
        """Add the confidences and classes of a batch, and the time they took, before and after adaptation."""
        here = slice(self.done, self.done + len(answers[0][1]))
        for which, (confidence, predicted) in enumerate(answers):
            self.predictions[which, here], self.confidence[which, here] = predicted.numpy(), confidence.numpy()
        self.done, self.seconds = here.stop, self.seconds + seconds

    def outcomes(self, indices: np.ndarray, labels: np.ndarray) -> tuple[Outcome, Outcome]:
        """Return both as outcomes of a stream of these images."""
        before, after = (
            Outcome(indices, labels, p, c, float(s)) for p, c, s in zip(self.predictions, self.confidence, self.seconds)
        )
        return before, after


class UnfinishedStream:
    """The file of one command; without a path nothing is kept."""

    def __init__(self, path: Path | None, command: str) -> None:
        self.path, self.command, self.saved, self.pause = path, command, time.monotonic(), EVERY

    def recover(self, adapter: Adapter, answers: Answers) -> None:
        """Fill in the answers of an interrupted command of the same kind, and give the adapter its state."""
        if self.path is None or not self.path.is_file():
            return
        try:
            tensors, found = load_tensors(self.path)
            facts = conform(Facts, found)
            if facts.command != self.command:
                return
            adapter.load_state_dict(without_prefix("adapter.", tensors))
            for name in ARRAYS:
                getattr(answers, name)[:, : facts.done] = tensors[name].numpy()
        except (InputError, KeyError, ValueError, RuntimeError) as error:
            raise InputError(f"cannot go on from {self.path} ({error}). Delete it to begin anew.") from error
        answers.done, answers.seconds = facts.done, np.array(facts.seconds)

    def save_sometimes(self, adapter: Adapter, answers: Answers) -> None:
        if self.path is None or time.monotonic() - self.saved < self.pause:
            return
        began = time.monotonic()
        make_folder(self.path.parent)
        arrays = {name: torch.from_numpy(getattr(answers, name)[:, : answers.done]) for name in ARRAYS}
        state = {k: v.detach().clone() for k, v in adapter.state_dict().items()}  # safetensors refuses shared memory
        facts = Facts(self.command, answers.done, (float(answers.seconds[0]), float(answers.seconds[1])))
        save_tensors(self.path, {**arrays, **with_prefix("adapter.", state)}, asdict(facts))
        self.saved = time.monotonic()
        self.pause = max(EVERY, SHARE * (self.saved - began))

    def finish(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
