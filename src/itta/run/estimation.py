"""Estimate the accuracy on a target along its stream, without labels."""

from dataclasses import dataclass

import torch

from itta.adapters import Adapter
from itta.data.target import Target
from itta.estimators import Estimated, Witness, estimate_from
from itta.estimators.image_shares import ClassShare, class_shares, right_probabilities
from itta.metrics.outcome import Outcome
from itta.models.trained import Trained
from itta.progress import ReportProgress, silent
from itta.run.evaluate import evaluate
from itta.settings import StreamSettings


@dataclass(frozen=True)
class Estimation:
    """A target without labels: the answers of the adapter, and what can be said about them."""

    estimated: Estimated
    right: torch.Tensor | None  # [N], how probably each answer of the adapter is right; None without an estimate
    classes: list[ClassShare]


def estimate_target(
    model: Trained, target: Target, adapter: Adapter, stream: StreamSettings, report: ReportProgress = silent
) -> tuple[Estimation, Outcome, float]:
    """Run a stream through an adapter once; return the estimate, the adapter's answers and the trained accuracy.

    The trained accuracy is the truth before adaptation; it means something only if the target has labels.
    """
    witness = Witness(model, adapter)
    seed = None if target.ordered else stream.seed
    outcome = evaluate(witness, target.images, target.indices, stream.batch_size, seed, report)
    evidence = witness.evidence()
    same = len(evidence) == len(outcome.labels)
    trained = float((evidence.answers.numpy() == outcome.labels).mean()) if same else float("nan")
    return estimation_of(witness, model), outcome, trained


def estimation_of(witness: Witness, model: Trained) -> Estimation:
    """Estimate from everything that a witness has noted."""
    evidence = witness.evidence()
    estimated = estimate_from(evidence, model.stand_ins)
    if estimated.combined is None or estimated.combined.refused:
        return Estimation(estimated, None, [])
    _, right = right_probabilities(evidence, estimated.combined)
    return Estimation(estimated, right, class_shares(evidence.after, right, model.classes))


def is_free(adapter: Adapter) -> bool:
    """Whether an estimate beside this adapter takes no further pass: it is itta+, or the model as trained."""
    return "itta+" in adapter.name or adapter.name == "source"
