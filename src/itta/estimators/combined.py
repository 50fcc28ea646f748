"""The calibrated combination: a small regression from statistics of the answers to accuracy, learned on stand-ins.

Our own, after Deng and Zheng, Are Labels Always Necessary for Classifier Accuracy Evaluation?, CVPR 2021,
https://arxiv.org/abs/2007.02915, who learn accuracy from many damaged copies of a labelled set. The interval is
conformal: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005. It is as wide as the mistakes on
kinds of damage that the regression had not seen, times ``widening``, and as the number of images of the target asks
for. ``widening`` balances two things: stand-ins have few images, so part of the mistakes is chance; and a real target
differs from the sources more than damaged sources do. The interval of the gain is as wide as the number of changed
answers asks for: no other image can be won or lost. All settings were chosen on source domains only:
docs/trust/estimates.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from itta.estimators.base import Estimator, Evidence
from itta.estimators.statistics import measure_answers
from itta.metrics.stratified import Share
from itta.models.stand_ins import USUAL_DEVIATION, VARIANCE_OF_A_CHANGE, StandIns

LEVEL = 0.9  # of the intervals
DEVIATIONS = 1.645  # of a normal distribution, on both sides, that hold 90 %
FEWEST = 12  # stand-ins that a regression needs
FEWEST_IMAGES = 30  # of a target; with fewer, class frequencies mean nothing


@dataclass(frozen=True)
class Settings:
    """Chosen on source domains only, by `python -m benchmarks.estimates_selection`."""

    accuracy_from: tuple[str, ...] = ("confidence", "unexplained skew", "diversity", "support", "distance of early")
    without_opinions: tuple[str, ...] = ("confidence", "diversity")  # instead, if the model has no restyled answer
    gain_from: tuple[str, ...] = ("believed gain",)
    ridge: float = 0.2  # strength of the penalty on the coefficients of the accuracy, for each stand-in
    gain_ridge: float = 2.0  # and on those of the gain
    widening: float = 0.6  # of the interval of the accuracy
    gain_widening: float = 1.9  # of the interval of the gain
    near: float = 1.0  # distance from the middle of the stand-ins beyond which intervals grow
    far: float = 4.0  # distance beyond which nothing is said


@dataclass(frozen=True)
class Estimate:
    """What unlabelled answers tell about a target."""

    before: Share  # accuracy of the trained model
    after: Share  # accuracy of the adapter
    gain: Share  # after − before
    helps: float  # probability that the gain is above 0
    distance: float  # of the target from the middle of the stand-ins; 90 % of these lie within 1
    refused: str = ""  # why the numbers above mean nothing


class Regression:
    """A ridge regression on standardised columns, with its mistakes on rows of kinds that it did not see."""

    def __init__(self, columns: Tensor, truth: Tensor, kinds: Tensor, penalty: float) -> None:
        self.mean, self.std = columns.mean(0), columns.std(0).clamp(min=1e-4)
        self.rows, self.penalty = (columns - self.mean) / self.std, penalty
        self.weights, self.middle = self.fit(self.rows, truth)
        unseen = torch.empty_like(truth)
        for kind in kinds.unique():
            weights, middle = self.fit(self.rows[kinds != kind], truth[kinds != kind])
            unseen[kinds == kind] = self.rows[kinds == kind] @ weights + middle
        self.unseen = unseen  # predictions for each row by the rows of other kinds

    def fit(self, rows: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        middle, centre = truth.mean(), rows.mean(0)
        centred = rows - centre
        gram = centred.T @ centred + self.penalty * len(rows) * torch.eye(rows.shape[1]).to(rows)
        weights = torch.linalg.solve(gram, centred.T @ (truth - middle))
        return weights, middle - centre @ weights

    def __call__(self, columns: Tensor) -> float:
        return float((columns - self.mean) / self.std @ self.weights + self.middle)

    def distance(self, columns: Tensor) -> float:
        """How far a row lies from the middle of the stand-ins (Mahalanobis); 90 % of these lie within 1."""
        spread = self.rows.T @ self.rows / len(self.rows) + 0.01 * torch.eye(self.rows.shape[1]).to(self.rows)
        inverse = torch.linalg.inv(spread)
        own = ((self.rows @ inverse) * self.rows).sum(1).sqrt()
        z = (columns - self.mean) / self.std
        return float((z @ inverse @ z).sqrt() / own.quantile(LEVEL).clamp(min=1e-3))


class Combined(Estimator):
    """accuracy = w·statistics + b, and gain = v·statistics + c; ridge regressions on the stand-ins."""

    name = "combined"
    paper = "none: our own, after Deng and Zheng, CVPR 2021"
    needs_stand_ins = True

    def __init__(self, settings: Settings = Settings()) -> None:
        self.settings = settings

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        assert known is not None
        return self.estimate(evidence, known).before.value

    def can_use(self, evidence: Evidence, known: StandIns | None) -> bool:
        return known is not None and len(known.accuracy) >= FEWEST and len(known.kinds.unique()) > 2

    def estimate(self, evidence: Evidence, known: StandIns) -> Estimate:
        """Estimate accuracy before and after adaptation, with intervals."""
        s = self.settings
        used = {*s.accuracy_from, *s.without_opinions, *s.gain_from, "believed gain", "changed", "confidence"}
        found = measure_answers(evidence, known.threshold, known.images, used)
        missing = set(s.accuracy_from) - (set(found) & set(known.columns))
        wanted = s.accuracy_from if missing <= {"distance of early"} else s.without_opinions
        level, columns = fit(wanted, found, known, known.accuracy, s.ridge)
        value, distance = within(level(columns)), level.distance(columns)
        error = quantile((level.unseen.clamp(0, 1) - known.accuracy).abs())
        sampling = DEVIATIONS * math.sqrt(value * (1 - value) / len(evidence))  # of the target's own images
        half = math.hypot(s.widening * max(1.0, distance / s.near) * error, sampling)
        gain, half_gain = self.estimate_gain(evidence, found, known)
        return Estimate(
            interval(value, half),
            interval(value + gain, math.hypot(half, half_gain)),
            Share(gain, gain - half_gain, gain + half_gain),
            0.5 if half_gain == 0 else normal_cdf(gain / (half_gain / DEVIATIONS)),
            distance,
            why_refused(len(evidence), distance, s.far),
        )

    def estimate_gain(self, evidence: Evidence, found: dict[str, float], known: StandIns) -> tuple[float, float]:
        """The gain and half the width of its interval.

        The regression knows the gains of itta+. Another adapter's gain is b + k·c, where c is the share of changed
        answers, b the gain that the opinions of itta+ believe in, and k the amount by which each change was better than
        believed on the stand-ins. Without opinions, any change may help or hurt.
        """
        s = self.settings
        if bool((evidence.after == evidence.answers).all()):
            return 0.0, 0.0
        if evidence.by_itta_plus:
            change, columns = fit(s.gain_from, found, known, known.gain, s.gain_ridge)
            return change(columns), s.gain_widening * half_of_gain(found["changed"], len(evidence), known)
        if "believed gain" not in found or "believed gain" not in known.columns:
            return 0.0, found["changed"]
        believed, changed = (known.columns[name].double() for name in ("believed gain", "changed"))
        better = known.gain.double() - believed
        k = float(better @ changed / (changed @ changed).clamp(min=1e-6))
        wider = max(1.0, found["changed"] / max(float(changed.mean()), 1e-6))  # more changes, more mistakes
        return found["believed gain"] + k * found["changed"], wider * quantile((better - k * changed).abs())


def fit(
    wanted: Sequence[str], found: Mapping[str, float], known: StandIns, truth: Tensor, penalty: float
) -> tuple[Regression, Tensor]:
    """Fit on the statistics that stand-ins and target both have, and return the target's own."""
    names = [name for name in wanted if name in found and name in known.columns] or ["changed"]
    columns = torch.stack([known.columns[name] for name in names], 1).double()
    fitted = Regression(columns, truth.double(), known.kinds, penalty)
    return fitted, torch.tensor([found[name] for name in names], dtype=torch.double)


def half_of_gain(changed: float, images: int, known: StandIns) -> float:
    """Half of a 90 % interval of the gain, from the share c of changed answers among n images.

    The deviation is σ = √((s·c)² + v·c/n): the worth of a change differs by s between stand-ins, and v is the variance
    of one changed answer.
    """
    worth = known.worth_of_a_change()
    deviation = USUAL_DEVIATION if worth is None else worth[1]
    return DEVIATIONS * math.hypot(deviation * changed, math.sqrt(VARIANCE_OF_A_CHANGE * changed / images))


def quantile(errors: Tensor) -> float:
    """The conformal quantile: the ⌈(n + 1)·level⌉-th smallest error, or the largest."""
    rank = min(math.ceil((len(errors) + 1) * LEVEL), len(errors))
    return float(errors.sort().values[rank - 1])


def within(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def interval(value: float, half: float) -> Share:
    value = within(value)
    return Share(value, max(value - half, 0.0), min(value + half, 1.0))


def why_refused(images: int, distance: float, far: float) -> str:
    """Why an estimate means nothing; empty if it means something."""
    if images < FEWEST_IMAGES:
        return (
            f"{images} images are too few, at least {FEWEST_IMAGES} are needed: use itta check, or wait for more images"
        )
    if distance > far:
        return (
            f"the answers are unlike those to any stand-in (distance {distance:.1f}; nine of ten lie within 1), so "
            "nothing can be said without labels: use itta check"
        )
    return ""
