"""How often the classes come, as far as the user knows it: exact shares, or a few images that somebody counted.

The answers of a model cannot tell a class that really is frequent from a class that the model prefers wrongly. A few
counted images can: docs/results/itta_plus_bounds.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from itta.errors import InputError, unknown

ESTIMATE_COUNTS_AS = 80.0  # m, in images; chosen on source domains by benchmarks.itta_plus_bounds
LEAST_SHARE = 1e-4  # no class becomes impossible
ROUNDING = 1e-3  # by which shares may miss a sum of 1
HOW = "write class:number, with shares that add up to 1, or with the number of counted images"


@dataclass(frozen=True)
class Frequencies:
    counted: np.ndarray  # [C], images n_c; shares count as one image in all
    estimate: float  # m: images that the estimate counts as

    @property
    def exact(self) -> bool:
        """Tell whether answers have no say."""
        return self.estimate == 0

    def with_estimate(self, prior: np.ndarray) -> np.ndarray:
        """Return the class frequencies, [.., C], for those that were estimated from answers.

        >>> Frequencies(np.array([30.0, 10.0]), 40.0).with_estimate(np.array([0.25, 0.75]))
        array([0.5, 0.5])
        """
        if self is UNKNOWN:
            return prior
        found: np.ndarray = (self.counted + self.estimate * prior) / (self.counted.sum() + self.estimate)
        return found


UNKNOWN = Frequencies(np.zeros(1), 1.0)


def read_frequencies(given: Sequence[str], classes: tuple[str, ...]) -> Frequencies:
    """Read texts of the form class:number. Whole numbers are counted images, and others are shares.

    Classes without a number have no counted image, or an equal part of what the shares leave.

    >>> read_frequencies(("dog:0.5", "cat:0.3"), ("cat", "cow", "dog", "hen")).counted
    array([0.3, 0.1, 0.5, 0.1])
    """
    if not given:
        return UNKNOWN
    numbers = [math.nan] * len(classes)
    for text in given:
        name, _, number = text.rpartition(":")
        if name not in classes:
            raise unknown(f"class in frequencies ({HOW}):", name or text, classes)
        if not math.isnan(numbers[classes.index(name)]):
            raise InputError(f"frequencies name the class {name!r} twice.")
        numbers[classes.index(name)] = read_number(name, number)
    named = np.array(numbers)
    total = float(np.nansum(named))
    if all(n.is_integer() for n in named[~np.isnan(named)].tolist()):
        if not total:
            raise InputError("frequencies count no image: count some, or leave frequencies out.")
        return Frequencies(np.nan_to_num(named), ESTIMATE_COUNTS_AS)
    others = int(np.isnan(named).sum())
    if total > 1 + ROUNDING or (not others and total < 1 - ROUNDING):
        raise InputError(f"the shares in frequencies add up to {total:g}, not to 1: {HOW}.")
    shares = np.maximum(np.nan_to_num(named, nan=max(0.0, 1 - total) / max(others, 1)), LEAST_SHARE)
    return Frequencies(shares / shares.sum(), 0.0)


def read_number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise InputError(f"the frequency of {name!r} must be a number of at least 0, got {text!r:.40}: {HOW}.")
    return number
