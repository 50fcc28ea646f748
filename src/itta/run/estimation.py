"""Estimate the accuracy on a target along its stream, without labels."""

from dataclasses import dataclass

import torch

from itta.adapters import Adapter
from itta.data.target import Target
from itta.estimators import Estimate, Estimated, Witness, estimate_from
from itta.estimators.image_shares import ClassShare, class_shares, right_probabilities
from itta.metrics.outcome import Outcome
from itta.metrics.stratified import Share
from itta.models.trained import Trained
from itta.progress import ReportProgress, silent
from itta.run.evaluate import evaluate
from itta.settings import StreamSettings


@dataclass(frozen=True)
class Estimation:
    """A target without labels: the answers of the adapter, and the estimates from them."""

    estimated: Estimated
    right: torch.Tensor | None  # [N], how probably each answer of the adapter is right; None without an estimate
    classes: list[ClassShare]

    @property
    def combined(self) -> Estimate | None:
        """The estimate with an interval, unless there is none or it was refused."""
        found = self.estimated.combined
        return None if found is None or found.refused else found


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
    without = Estimation(estimated, None, [])
    if without.combined is None:
        return without
    _, right = right_probabilities(evidence, without.combined)
    return Estimation(estimated, right, class_shares(evidence.after, right, model.classes))


def estimate_values(share: Share | None) -> dict[str, float]:
    """An estimated accuracy as a record and a story hold it; empty without one."""
    if share is None:
        return {}
    return {"accuracy": share.value, "low": share.low, "high": share.high}


def is_free(adapter: Adapter) -> bool:
    """Whether an estimate beside this adapter takes no further pass: it is itta+, or the model as trained."""
    return "itta+" in adapter.name or adapter.name == "source"
