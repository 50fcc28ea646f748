"""The statistics of unlabelled answers from which the combined estimator learns. A new one is a function and a line."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from itta.estimators.base import Evidence
from itta.functional.answer_statistics import (
    answer_diversity,
    answer_skew,
    believed_gain,
    mean_confidence,
    mean_distance,
    mean_support,
    negative_entropy,
    nuclear_norm,
    share_above,
)
from itta.functional.priors import prior_from_confusions
from itta.functional.sharpening import sharpen

PULL = 1.0  # weight of equal classes among the class frequencies that explain the answers

Statistic = Callable[[Evidence, float], float | None]  # (answers, threshold of the entropy) -> number, None: not known


def support_of(opinion: str) -> Statistic:
    """The probability that another opinion gives to the trained model's answers."""

    def support(evidence: Evidence, threshold: float) -> float | None:
        found = evidence.opinions.get(opinion)
        return None if found is None else mean_support(found, evidence.answers)

    return support


def support(evidence: Evidence, threshold: float) -> float | None:
    """The mean support by the restyled answer and by similar images, as far as they are known."""
    both = (STATISTICS[name](evidence, threshold) for name in ("support of restyled", "support of neighbours"))
    known = [value for value in both if value is not None]
    return sum(known) / len(known) if known else None


def unexplained_skew(evidence: Evidence, threshold: float) -> float | None:
    """The distance between the shares of the answered classes and the class frequencies that would explain the answers.

    Classes that really are frequent are answered often, and that is no mistake. So the frequencies are estimated from
    the answers and the model's confusions, and drawn towards equal classes: a biased model would explain any answers.
    """
    if evidence.confusions is None:
        return None
    mean = evidence.before.mean(0, keepdim=True)
    return answer_skew(evidence.before, prior_from_confusions(evidence.confusions, mean, PULL)[0])


def distance_of_early(evidence: Evidence, threshold: float) -> float | None:
    """The mean distance between the trained model's answers and the early reader's, at the same mean entropy."""
    if evidence.early is None:
        return None
    factor = sharpen(evidence.early, -float(negative_entropy(evidence.before).mean()))
    return mean_distance(evidence.before, (factor * evidence.early).softmax(1))


def gain_by_belief(evidence: Evidence, threshold: float) -> float | None:
    if not evidence.opinions:
        return None
    return believed_gain(evidence.belief, evidence.answers, evidence.after)


STATISTICS: dict[str, Statistic] = {
    "confidence": lambda e, t: mean_confidence(e.before),
    "atc": lambda e, t: share_above(negative_entropy(e.before), t),
    "nuclear norm": lambda e, t: nuclear_norm(e.before),
    "unexplained skew": unexplained_skew,
    "diversity": lambda e, t: answer_diversity(e.before),
    "support of restyled": support_of("restyled"),
    "support of prototypes": support_of("prototypes"),
    "support of neighbours": lambda e, t: e.neighbours,
    "support": support,
    "distance of early": distance_of_early,
    "believed gain": gain_by_belief,
    "changed": lambda e, t: float((e.after != e.answers).float().mean()),
}


def measure_answers(evidence: Evidence, threshold: float, images: int, names: Collection[str]) -> dict[str, float]:
    """Compute the statistics of these names, as far as they can be computed.

    Some statistics depend on the number of images, so they are means over random parts of about ``images`` images.
    """
    parts = max(1, round(len(evidence) / max(images, 1)))
    order = torch.randperm(len(evidence), generator=torch.Generator().manual_seed(0))
    found: dict[str, list[float]] = {}
    for rows in order.tensor_split(parts):
        part = evidence.part(rows)
        for name in names:
            value = STATISTICS[name](part, threshold)
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def table_row(evidence: Evidence, labels: Tensor, threshold: float) -> dict[str, float]:
    """The statistics of a stand-in, and the truth about it."""
    right = (evidence.answers == labels).float().mean()
    gain = (evidence.after == labels).float().mean() - right
    statistics = {name: value for name, s in STATISTICS.items() if (value := s(evidence, threshold)) is not None}
    return {**statistics, "accuracy": float(right), "gain": float(gain), "images": float(len(labels))}
