"""Find out from a model's answers whether neighbouring images tend to have the same class, and which classes come.

Our own. If the answers to neighbouring images are more alike than chance, the images before help to answer the next
one. The model's confusions on its sources tell a biased model from a stream of unequal classes: answers that a biased
model gives too often are held back, and classes that really are frequent are preferred.
Online estimates of the class frequencies: Yang and Zhou, Non-stationary Data Sequence Classification Using Online
Class Priors Estimation, Pattern Recognition 2008. Other methods for correlated streams: LAME (CVPR 2022), NOTE
(NeurIPS 2022), DELTA (ICLR 2023), ROID (WACV 2024).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from itta.adapters.frequencies import UNKNOWN, Frequencies
from itta.functional.priors import explaining_prior

LEAST = 1e-12  # of a number that is divided by
NOISE = 1e-4  # smallest variance of a likeness: a few equal answers prove nothing
ROWS = 128  # images whose fading sums are computed together
LEAK = 1e-3  # share of a chain that is spread over all classes, so that no class becomes impossible


@dataclass(frozen=True)
class Rules:
    """The constants of a diagnosis; `ITTAPlus.Hparams` explains each."""

    correction: float = 1.0
    pull: float = 0.8
    rise: float = 14.0
    usual: Literal["equal", "between", "sources"] = "between"
    stays: tuple[float, ...] = (0.5, 0.95)
    low: float = 1.5
    high: float = 4.0
    memory: int = 1000
    start: float = 16.0
    ordered: bool = True
    neighbours: bool = True


class Judged(NamedTuple):
    """The answers to a batch after its diagnosis, log-probabilities [B, C], and the diagnosis at each image, [B]."""

    corrected: Tensor  # by the class frequencies of the stream, and the bias of the model
    posterior: Tensor  # and the images before are used
    rho: Tensor
    kappa: Tensor
    prior: Tensor  # [C], in use for the last image


class Diagnosis:
    """Correct answers by the class frequencies of the stream and, on a correlated stream, by the images before.

    p_t is the answer to image t, ā the mean of the answers before it, and ḡ the running mean of all answers; ḡ starts
    with the answers that the model's confusions predict for some images of the usual classes. π̂ is the prior that
    explains ḡ by the confusions, pulled towards the usual classes. Confusions on the sources say less about a target
    that is further away, so the pull grows with that distance: it is min(pull, rise·d̄), with d̄ the mean of the
    distances that come with the answers. Without distances, it is the whole pull.

    Class frequencies that the user knows take the place of π̂. Of counted images, n_c of class c and N in all, the
    estimate counts as m more: (n_c + m·π̂_c)/(N + m). The images that ḡ starts with have these frequencies, too.

    Likeness: δ_t = ⟨p_{t−1}, p_t⟩ − ⟨ā, p_t⟩ is 0 on average if the order is random, whatever the classes. z is the
    mean of δ over its standard error, κ = clip((z − low)/(high − low), 0, 1), and ρ = Σ⟨p_{t−1}, p_t⟩/Σ⟨ā, p_t⟩.
    Base prior: b ∝ ḡ^(1−c)·(π̂∘Mᵀπ̂/Mᵀu)^c, with M the confusions, u the usual classes and c the correction. Bayes' rule
    gives it: answers to the usual classes would have the mean q = Mᵀu∘ḡ/Mᵀπ̂, where ḡ/Mᵀπ̂ is the bias that unequal
    classes do not explain, and log p − log q + log π̂ is log p − log ḡ + log b for c = 1.
    Neighbours: a chain f^s assumes that the class stays with probability s, and predicts s·f^s + (1 − s)·b. v is the
    mean prediction of the chains, each weighted by its likelihood so far.
    Answer: log p − log ḡ + log(κ·v + (1 − κ)·b). So frequent answers are held back as far as a bias explains them, and
    preferred as far as frequent classes do.

    The images of a batch count one after another; with ``ordered=False`` each batch counts as one step, with its mean
    answer. Everything runs on the CPU in double precision, and in NumPy, whose calls cost less: the arrays are [B, C],
    small beside a network.
    """

    def __init__(
        self, classes: int, rules: Rules, known: Mapping[str, Tensor] | None = None, frequencies: Frequencies = UNKNOWN
    ) -> None:
        """Take along the facts about the model that its sources gave: its "mean" answers, and the classes' "prior"."""
        self.classes, self.rules, known = classes, rules, known or {}
        self.confusions = known.get("mean", torch.eye(classes)).detach().double().cpu().numpy()
        self.usual = usual_classes(rules.usual, known.get("prior", torch.ones(classes))).numpy()
        self.expected = self.usual @ self.confusions  # mean answer to the usual classes
        self.frequencies = frequencies
        self.awaited = frequencies.with_estimate(self.usual) @ self.confusions  # mean answer before any image came
        self.stays = np.array(rules.stays)[:, None]
        self.reset()

    def reset(self) -> None:
        chains = len(self.rules.stays)
        self.answered = np.zeros(self.classes)  # fading sum of the answers
        self.distance = 0.0  # fading sum of the distances; inf: there are none
        self.start = self.rules.start  # images of the usual classes that ḡ starts with; they fade as well
        self.previous = np.zeros(self.classes)  # the last answer, or batch mean
        self.chains = np.full((chains, self.classes), 1 / self.classes)
        self.evidence = np.zeros(chains)  # log-likelihood of each chain
        self.likeness = np.zeros(6)  # Σw, Σw², Σδ, Σδ², Σ⟨p_{t−1}, p_t⟩, Σ⟨ḡ, p_t⟩

    def forget(self) -> None:
        """Forget the mean answer, as in a new domain; the likeness of neighbours stays known."""
        self.answered, self.start, self.distance = np.zeros_like(self.answered), self.rules.start, 0.0

    def __call__(self, log_p: Tensor, distances: Tensor | None = None) -> Judged:
        """Take in the answers to a batch, log-probabilities [B, C], and correct them.

        A distance says how far an image is from the sources, from 0 to 1; [B].
        """
        own = normalised(log_p.detach().double().cpu().numpy())  # rounding aside, they are so already
        far = None if distances is None else distances.detach().double().cpu().numpy()
        means, pulls, rho, kappa = self.take_in(np.exp(own), far)
        base = self.base(means, pulls)
        likelihood = own - log(means)
        voted = self.vote(likelihood, base, kappa)
        corrected, posterior = (torch.from_numpy(normalised(likelihood + log(b))).to(log_p) for b in (base, voted))
        return Judged(corrected, posterior, *(torch.from_numpy(of) for of in (rho, kappa, voted[-1])))

    def base(self, means: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return b, the prior without neighbours, for each mean answer [B, C] and pull [B]; [B, C]."""
        if self.frequencies.exact:
            prior = np.broadcast_to(self.frequencies.counted, means.shape)
        else:
            estimate = explaining_prior(self.confusions, means, pulls[:, None], self.usual)
            prior = self.frequencies.with_estimate(estimate)
        bayes = prior * (prior @ self.confusions) / self.expected
        c = self.rules.correction
        found: np.ndarray = bayes if c == 1 else means ** (1 - c) * bayes**c
        return found / found.sum(1, keepdims=True)

    def bias(self) -> Tensor:
        """Return the present correction of log-probabilities without neighbours, log b − log ḡ, [C]."""
        images = self.answered.sum() + self.start
        mean = (self.answered + self.start * self.awaited) / images
        return torch.from_numpy(
            log(self.base(mean[None], self.pull(np.array([self.distance / images])))[0]) - log(mean)
        )

    def pull(self, distance: Any) -> Any:
        """Return the weight of the usual classes in π̂ for mean distances. Images that ḡ starts with have distance 0."""
        with np.errstate(invalid="ignore"):  # 0·∞ is not a number, and the whole pull counts
            return np.fmin(self.rules.pull, self.rules.rise * np.asarray(distance))

    def take_in(self, p: np.ndarray, far: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Return ḡ [B, C], the pull [B], ρ [B] and κ [B] at each image; the image itself is included."""
        known, away = (True, far) if far is not None and math.isfinite(self.distance) else (False, np.zeros(len(p)))
        n, rows, away = (1, p, away) if self.rules.ordered else (len(p), p.mean(0)[None], away.sum()[None])
        kept, images = self.kept(n), np.full((len(rows), 1), float(n))  # of each step
        numbers = [self.answered.sum(), self.start, self.distance if known else 0.0]
        before = np.concatenate([self.answered, numbers])
        sums = fading_sums(before, np.concatenate([n * rows, images, 0 * images, away[:, None]], 1), kept)
        answered, (total, start, distance) = sums[:, :-3], sums[:, -3:].T
        distance = distance if known else np.full(len(sums), math.inf)
        likeness = self.compare(rows, np.concatenate([before[None], sums[:-1]])[:, :-2], kept)
        self.answered, self.start, self.distance = answered[-1].copy(), start[-1], distance[-1]
        self.previous, self.likeness = rows[-1].copy(), likeness[-1]
        means = (answered + start[:, None] * self.awaited) / (total + start)[:, None]
        found = means, self.pull(distance / (total + start)), rho_of(likeness), self.kappa_of(likeness)
        return tuple(np.repeat(of, n, axis=0) for of in found)

    def compare(self, rows: np.ndarray, before: np.ndarray, kept: float) -> np.ndarray:
        """Return the sums of the likeness after each step, [S, 6]; ``before``: answers and images so far, [S, C + 1].

        The first answer of all, and the first one in a new domain, have nothing to be compared with.
        """
        first = 0 if before[0, -1] > 0 else 1
        earlier = np.concatenate([self.previous[None], rows])[first:-1]
        alike = (rows[first:] * earlier).sum(1)
        chance = (rows[first:] * before[first:, :-1]).sum(1) / before[first:, -1]
        one, more = np.ones_like(alike), alike - chance
        found = fading_sums(self.likeness, np.stack([one, one, more, more**2, alike, chance], 1), kept)
        found[:, 1:2] = fading_sums(self.likeness[1:2], one[:, None], kept**2)
        return np.concatenate([self.likeness[None]] * first + [found])

    def kept(self, images: int) -> float:
        """Return the share of a fading sum that stays when so many images come."""
        return float((1 - 1 / self.rules.memory) ** images)

    @property
    def rho(self) -> float:
        """Return how many times as alike as chance neighbours are; about 1 in random order."""
        return float(rho_of(self.likeness[None])[0])

    @property
    def kappa(self) -> float:
        """Return the weight of the neighbours: 0 if their likeness may be chance, 1 if it cannot be."""
        return float(self.kappa_of(self.likeness[None])[0])

    def kappa_of(self, likeness: np.ndarray) -> np.ndarray:
        """Return κ for sums of the likeness, [S, 6]; [S]."""
        weight, squared, delta, delta_squared = likeness[:, :4].T
        if not self.rules.neighbours:
            return np.zeros(len(likeness))
        some = np.maximum(weight, LEAST)
        n, mean = np.maximum(weight**2 / np.maximum(squared, LEAST), LEAST), delta / some
        variance = np.maximum(delta_squared / some - mean**2, 0.0) + NOISE
        z = mean / (np.sqrt(variance / n) * (1 + 4 / n))  # wider while few images are known
        return np.clip((z - self.rules.low) / (self.rules.high - self.rules.low), 0.0, 1.0) * (weight > 0)

    def vote(self, likelihood: np.ndarray, bases: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """Return the prior in use at each image, κ·v + (1 − κ)·b, [B, C]; the chains take the images in."""
        like = np.exp(likelihood - likelihood.max(1, keepdims=True))
        chains, kappas = self.chains, kappa[:, None]
        steps, n = (len(like), 1) if self.rules.ordered else (1, len(like))
        predicted = ((1 - self.stays) * bases[:, None]).reshape(steps, n, *chains.shape)
        total = np.empty((*predicted.shape[:3], 1))
        for now, seen, sums in zip(predicted, like.reshape(steps, n, 1, -1), total):  # [n, K, C], [n, 1, C], [n, K, 1]
            now += self.stays * chains
            joint = now * seen
            np.add.reduce(joint, 2, keepdims=True, out=sums)
            joint /= sums
            chains = (1 - LEAK) * (joint[0] if n == 1 else joint.mean(0)) + LEAK / self.classes
        start, found = self.evidence, np.log(total[..., 0]).sum(1)  # [K], [steps, K]
        evidence = np.concatenate([start[None], fading_sums(start, found, self.kept(n))])
        weights = np.exp(evidence[:-1] - evidence[:-1].max(1, keepdims=True))[:, None, :, None]  # [steps, 1, K, 1]
        voted = ((weights * predicted).sum(2) / weights.sum(2)).reshape(bases.shape)
        self.chains, self.evidence = chains, evidence[-1].copy()
        return np.where(kappas > 0, kappas * voted + (1 - kappas) * bases, bases)

    def state_dict(self) -> dict[str, Tensor]:
        tensors = {name: torch.from_numpy(getattr(self, name).copy()) for name in STATE}
        numbers = {"numbers": [self.start, *self.likeness], "distance": self.distance}
        return {**tensors, **{name: torch.tensor(of, dtype=torch.double) for name, of in numbers.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in STATE:
            setattr(self, name, state[name].numpy().copy())
        self.start, self.likeness = float(state["numbers"][0]), state["numbers"][1:].numpy().copy()
        self.distance = float(state["distance"])


def log(p: np.ndarray) -> np.ndarray:
    """Return logarithms; a class that is impossible has −∞."""
    with np.errstate(divide="ignore"):
        return np.log(p)


def normalised(log_p: np.ndarray) -> np.ndarray:
    """Return log-probabilities, [B, C], for logarithms of their multiples.

    >>> np.exp(normalised(np.log([[2.0, 6.0]])))
    array([[0.25, 0.75]])
    """
    shifted = log_p - log_p.max(1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def fading_sums(before: np.ndarray, new: np.ndarray, kept: float) -> np.ndarray:
    """Return the sums after each row of ``new``, [S, D]: each sum is what is kept of the sum before, plus the row.

    >>> fading_sums(np.array([8.0]), np.array([[1.0], [2.0]]), kept=0.5)
    array([[5. ],
           [4.5]])
    """
    found = [before[None]]
    for part in np.split(new, range(ROWS, len(new), ROWS)):
        found.append(fading(len(part), kept) @ np.concatenate([found[-1][-1:], part]))
    return np.concatenate(found[1:])


@lru_cache(64)
def fading(rows: int, kept: float) -> np.ndarray:
    """Return the weights of the sum before and of each row in the sum after each row, [S, 1 + S].

    >>> fading(2, 0.5)
    array([[0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """
    ages = np.subtract.outer(np.arange(1, rows + 1), np.arange(rows + 1))
    return np.where(ages >= 0, kept ** np.maximum(ages, 0), 0.0)


def rho_of(likeness: np.ndarray) -> np.ndarray:
    """Return ρ for sums of the likeness, [S, 6]; [S]. It is 1 if nothing has been compared."""
    alike, chance = likeness[:, 4:].T
    return np.where(chance > 0, alike / np.maximum(chance, LEAST), 1.0)


STATE = ("answered", "previous", "chains", "evidence")
EXPONENTS = {"equal": 0.0, "between": 0.5, "sources": 1.0}


def usual_classes(usual: str, shares: Tensor) -> Tensor:
    """Return the usual class frequencies u for the classes' shares in the sources, [C].

    >>> usual_classes("between", torch.tensor([0.8, 0.2]))
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    found: Tensor = shares.detach().double().cpu() ** EXPONENTS[usual]
    return found / found.sum()
