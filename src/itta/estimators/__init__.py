"""Accuracy without labels. ``ESTIMATORS`` is the registry: the command line, the docs and the tests read it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from itta.adapters import Guard, adapt
from itta.adapters.base import Adapter
from itta.errors import InputError
from itta.estimators.agreement import Agreement
from itta.estimators.atc import AverageThresholdedConfidence
from itta.estimators.base import Estimator, Evidence
from itta.estimators.combined import Combined, Estimate
from itta.estimators.confidence import AverageConfidence
from itta.estimators.difference import DifferenceOfConfidences
from itta.estimators.nuclear_norm import NuclearNorm
from itta.estimators.witness import Witness
from itta.models.stand_ins import StandIns
from itta.models.trained import Trained
from itta.models.wrapped import wrap

ESTIMATORS: dict[str, type[Estimator]] = {
    e.name: e
    for e in (
        *(AverageConfidence, DifferenceOfConfidences, AverageThresholdedConfidence, Agreement, NuclearNorm),
        Combined,
    )
}
STANDING_STILL = ("itta+", "lame", "source", "t3a")  # adapters that never change their copy of the network
NO_STAND_INS = (
    "the model has no stand-ins. Single estimates are often too high on images of another style. Train the model again "
    "with stand-ins, or give it some with itta.collect"
)


@dataclass(frozen=True)
class Estimated:
    """Everything that can be said about a target without labels."""

    images: int
    changed: int
    most_frequent: float  # share of the images that get the most frequent answer of the trained model
    combined: Estimate | None  # None without stand-ins
    single: dict[str, float] = field(default_factory=dict)  # estimator -> accuracy of the trained model
    missing: str = ""  # why there is no combined estimate


def estimate_from(evidence: Evidence, known: StandIns | None) -> Estimated:
    """Ask every estimator that has the things it needs."""
    single, combined = {}, None
    for name, cls in ESTIMATORS.items():
        estimator = cls()
        if not estimator.can_use(evidence, known):
            continue
        if isinstance(estimator, Combined) and known is not None:
            combined = estimator.estimate(evidence, known)
        else:
            single[name] = estimator(evidence, known)
    changed = int((evidence.after != evidence.answers).sum())
    most_frequent = float(evidence.answers.bincount().max()) / len(evidence)
    return Estimated(len(evidence), changed, most_frequent, combined, single, "" if combined else NO_STAND_INS)


def estimate(
    model_or_adapter: nn.Module,
    images: Tensor | Iterable[Tensor],
    batch_size: int = 32,
    model: nn.Module | None = None,
) -> Estimated:
    """Estimate the accuracy on unlabelled images before and after adaptation, each with a 90 % interval.

    ``images`` is a tensor [N, 3, H, W] in [0, 1] or batches of such. A model, or any network, is adapted with `itta+`.
    An adapter learns from the images, as it does when it predicts them. Beside an adapter that changes its network,
    pass the trained ``model`` as well.
    """
    trained = find_trained(model_or_adapter, model)
    adapter = model_or_adapter if isinstance(model_or_adapter, Adapter) else adapt(trained)
    witness = Witness(trained, adapter)
    batches = images.split(batch_size) if isinstance(images, Tensor) else images
    with torch.inference_mode(False):
        for batch in batches:
            witness(batch)
    if not witness.notes:
        raise InputError("no images to estimate from: give at least one batch.")
    return estimate_from(witness.evidence(), trained.stand_ins)


def find_trained(model_or_adapter: nn.Module, model: nn.Module | None) -> Trained:
    """Return the trained model, which gives the answers before adaptation."""
    found = model_or_adapter if model is None else model
    if not isinstance(found, Adapter):
        return found if isinstance(found, Trained) else wrap(found)
    if isinstance(found, Guard) or found.name in STANDING_STILL:
        return found.model
    raise InputError(
        f"{found.name} changes its copy of the network, so the answers before adaptation are not known: pass the "
        "trained model too, itta.estimate(adapter, images, model=model)."
    )


__all__ = ["ESTIMATORS", "Estimate", "Estimated", "Estimator", "Evidence", "Witness", "estimate", "estimate_from"]
