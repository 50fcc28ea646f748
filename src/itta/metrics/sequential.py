"""Does adaptation help? A test that may be looked at after every label, and stopped at any of them.

Only images with a changed answer can tell. Each of them, once labelled, has a difference: +1 if the new answer is
right, −1 if the old one was, 0 if neither is. The changed images are labelled in random order, without replacement.

Testing by betting: Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables by Betting, JRSS B 2024,
https://arxiv.org/abs/2010.09686. Somebody who claims "adaptation does not help" loses money on bets that are fair if
the claim is true. The wealth of the other side, which starts at 1, is an e-value: by Ville's inequality it ever reaches
1/α with a chance of α at most. Ours, because confseq, the library of the authors, is only there as source code in C++.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

ALPHA = 0.05
BETS = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8])  # shares of the largest bet, side by side
FUTURES = 200  # simulated, to tell how many labels are missing
FAR = 2000  # labels: no person gives more
Decision = Literal["helps", "hurts", "equal", "undecided"]


@dataclass(frozen=True)
class Verdict:
    decision: Decision
    labels: int  # of changed images, so far
    changed: int  # images in all
    e_helps: float  # evidence against "does not help"; 2/α decides
    e_hurts: float  # evidence against "does not hurt"
    still_needed: int  # labels of changed images, in half of the simulated futures


def log_wealth(differences: np.ndarray, population: int) -> np.ndarray:
    """Return the logarithm of the e-value against "the differences sum to 0 or less", after each label.

    ``differences`` [..., T] are the first T of ``population`` images in random order. With S their sum so far, the
    claim says that the next one is m = −S/(images left) or less on average; bets are λ·(d − m), λ up to 1/(1 + m).

    >>> log_wealth(np.array([1.0, 1.0, 1.0]), 5).round(2).tolist()  # the two that are left cannot undo this
    [0.28, 0.75, inf]
    """
    d = np.asarray(differences, dtype=float)
    before = np.concatenate([np.zeros_like(d[..., :1]), np.cumsum(d, -1)[..., :-1]], -1)
    left = population - np.arange(d.shape[-1])  # before each label
    claimed = -before / left
    largest = 1 / np.maximum(1 + claimed, 1e-3)
    growth = 1 + BETS * (largest * (d - claimed))[..., None]
    paths = np.cumsum(np.log(np.maximum(growth, 1e-12)), -2)
    top = paths.max(-1, keepdims=True)
    wealth = top[..., 0] + np.log(np.exp(paths - top).mean(-1))
    impossible = np.cumsum(d, -1) > left - 1  # what is left cannot bring the sum down to 0
    return np.where(np.maximum.accumulate(impossible, -1), np.inf, wealth)


def judge_differences(differences: np.ndarray, population: int, alpha: float = ALPHA, seed: int = 0) -> Verdict:
    """Decide from the differences of the labelled images, in the order in which they were labelled.

    >>> judge_differences(np.ones(12), 100).decision, judge_differences(-np.ones(3), 100).decision
    ('helps', 'undecided')
    """
    d = np.asarray(differences, dtype=float)
    if population == 0:
        return Verdict("equal", 0, 0, 1.0, 1.0, 0)
    if not len(d):
        return Verdict("undecided", 0, population, 1.0, 1.0, labels_needed(d, population, alpha, seed))
    peaks = [float(np.exp(np.minimum(log_wealth(sign * d, population).max(), 700.0))) for sign in (1, -1)]
    decision: Decision = "undecided"
    if max(peaks) >= 2 / alpha:
        decision = "helps" if peaks[0] > peaks[1] else "hurts"
    elif len(d) == population:
        decision = "equal"
    needed = labels_needed(d, population, alpha, seed) if decision == "undecided" else 0
    return Verdict(decision, len(d), population, peaks[0], peaks[1], needed)


def labels_needed(differences: np.ndarray, population: int, alpha: float = ALPHA, seed: int = 0) -> int:
    """Return the number of further labels after which half of the simulated futures are decided.

    A future draws the shares of −1, 0 and +1 as the labels so far allow (Dirichlet, half an image of each to begin
    with), and then the images that are left.
    """
    done, left = len(differences), min(population - len(differences), FAR)
    if left <= 0:
        return 0
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([(differences == value).sum() + 0.5 for value in (-1, 0, 1)], FUTURES)
    drawn = (rng.random((FUTURES, left, 1)) > np.cumsum(shares, 1)[:, None, :2]).sum(-1) - 1
    paths = np.concatenate([np.broadcast_to(differences, (FUTURES, done)), drawn], 1)
    decided = np.maximum(log_wealth(paths, population), log_wealth(-paths, population)) >= np.log(2 / alpha)
    first = np.where(decided.any(1), decided.argmax(1) + 1 - done, left)
    return int(np.median(np.maximum(first, 1)))
