"""The estimate of a target, shared out over its images: how probably each answer is right, and each class."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from itta.estimators.base import Evidence
from itta.estimators.combined import Estimate

LEAST = 30  # images with an answer, for that class to have an estimate


class ClassShare(NamedTuple):
    """The images that are answered with one class."""

    name: str
    images: int
    right: float  # estimated share of them


def right_probabilities(evidence: Evidence, estimate: Estimate) -> tuple[Tensor, Tensor]:
    """Return how probably each answer is right, before and after adaptation, [N] each.

    The belief in each answer is moved, by the same amount on the logit scale, until the mean is the estimate.
    """
    belief = evidence.belief
    shares = ((evidence.answers, estimate.before.value), (evidence.after, estimate.after.value))
    before, after = (move_mean(belief.gather(1, a.unsqueeze(1))[:, 0], mean) for a, mean in shares)
    return before, after


def move_mean(p: Tensor, mean: float) -> Tensor:
    """Move probabilities on the logit scale until they have a given mean.

    >>> moved = move_mean(Tensor([0.5, 0.9]), 0.5)
    >>> round(float(moved.mean()), 4), bool(moved[0] < moved[1])
    (0.5, True)
    """
    z = p.double().clamp(1e-6, 1 - 1e-6).logit()
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((z + middle).sigmoid().mean()) < mean else (low, middle)
    return (z + (low + high) / 2).sigmoid().float()


def class_shares(answers: Tensor, right: Tensor, classes: Sequence[str]) -> list[ClassShare]:
    """Estimate each class that enough images are answered with: which share of these answers is right."""
    found = []
    for number, name in enumerate(classes):
        own = answers == number
        if int(own.sum()) >= LEAST:
            found.append(ClassShare(name, int(own.sum()), float(right[own].mean())))
    return found
