"""Checkpoints of a training: all that a resumed run needs to equal one that never stopped."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from itta.algorithms import Algorithm
from itta.errors import InputError, last_line
from itta.nn.averaged_weights import AveragedWeights
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors, with_prefix, without_prefix
from itta.schema import Count, Finite, conform, damaged
from itta.store.tensors import load_tensors, save_tensors

Several = Annotated[int, Meta(ge=1)]


@dataclass
class TrainingProgress:
    """How far a training has come: the state of a run beside its tensors."""

    step: Count = 0  # steps done
    log_sums: dict[str, Finite] = field(default_factory=dict)
    log_counts: dict[str, Several] = field(default_factory=dict)  # a method may log some values in some steps only
    best: Finite = -1.0  # best source validation accuracy so far

    def add(self, logs: dict[str, float]) -> None:
        """Count a step and its logs."""
        self.step += 1
        for name, value in logs.items():
            self.log_sums[name] = self.log_sums.get(name, 0.0) + value
            self.log_counts[name] = self.log_counts.get(name, 0) + 1

    def take_means(self) -> dict[str, float]:
        """Return the means of the logs since the last call, and start anew."""
        means = {name: total / self.log_counts[name] for name, total in self.log_sums.items()}
        self.log_sums, self.log_counts = {}, {}
        return means


def save_checkpoint(
    path: Path, algorithm: Algorithm, progress: TrainingProgress, key: str, average: AveragedWeights | None = None
) -> None:
    """Write weights, optimisers, averaged weights and progress; ``key`` names the trial."""
    tensors = with_prefix("model.", algorithm.state_dict())
    if average is not None:
        tensors |= with_prefix("average.", average.tensors)
    for name, optimizer in algorithm.optimizers.items():
        tensors |= with_prefix(f"optimizer.{name}.", optimizer_tensors(optimizer))
    save_tensors(path, tensors, {"key": key, "progress": vars(progress)})


def load_checkpoint(
    path: Path, algorithm: Algorithm, key: str, average: AveragedWeights | None = None
) -> TrainingProgress:
    """Fill the algorithm, its optimisers and the averaged weights; the checkpoint must belong to the same trial."""
    tensors, metadata = load_tensors(path)
    if metadata.get("key") != key:
        raise InputError(f"{path} belongs to another trial: choose another --out, or delete that directory.")
    with damaged(path, "it may be of another version of itta; delete that directory"):
        progress = conform(TrainingProgress, metadata.get("progress"))
        if progress.log_sums.keys() != progress.log_counts.keys():
            raise InputError("its sums and counts of logs differ")
        try:
            algorithm.load_state_dict(without_prefix("model.", tensors))
            for name, optimizer in algorithm.optimizers.items():
                load_optimizer_tensors(optimizer, without_prefix(f"optimizer.{name}.", tensors))
            if average is not None:
                average.load(without_prefix("average.", tensors))
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise InputError(last_line(error)) from error
    return progress
