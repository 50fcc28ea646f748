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
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from itta.functional.priors import prior_from_confusions

NOISE = 1e-4  # smallest variance of a likeness: a few equal answers prove nothing
LEAK = 1e-3  # share of a chain that is spread over all classes, so that no class becomes impossible


@dataclass(frozen=True)
class Rules:
    """The constants of a diagnosis; `ITTAPlus.Hparams` explains each."""

    correction: float = 1.0
    pull: float = 1.2
    rise: float = 10.0
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
    answer. Everything runs on the CPU in double precision: the arrays are [B, C], small beside a network.
    """

    def __init__(self, classes: int, rules: Rules, known: Mapping[str, Tensor] | None = None) -> None:
        """Take along the facts about the model that its sources gave: its "mean" answers, and the classes' "prior"."""
        self.classes, self.rules, known = classes, rules, known or {}
        self.confusions = known.get("mean", torch.eye(classes)).detach().float().cpu()
        self.usual = usual_classes(rules.usual, known.get("prior", torch.ones(classes)))
        self.expected = (self.usual @ self.confusions.double()).numpy()  # mean answer to the usual classes
        self.stays = np.array(rules.stays).reshape(-1, 1, 1)
        self.reset()

    def reset(self) -> None:
        chains = len(self.rules.stays)
        self.answered = torch.zeros(self.classes, dtype=torch.double)  # fading sum of the answers
        self.distance = 0.0  # fading sum of the distances; inf: there are none
        self.start = self.rules.start  # images of the usual classes that ḡ starts with; they fade as well
        self.previous = torch.zeros(self.classes, dtype=torch.double)  # the last answer, or batch mean
        self.chains = torch.full((chains, self.classes), 1 / self.classes, dtype=torch.double)
        self.evidence = torch.zeros(chains, dtype=torch.double)  # log-likelihood of each chain
        self.likeness: tuple[float, ...] = (0.0,) * 6  # Σw, Σw², Σδ, Σδ², Σ⟨p_{t−1}, p_t⟩, Σ⟨ḡ, p_t⟩

    def forget(self) -> None:
        """Forget the mean answer, as in a new domain; the likeness of neighbours stays known."""
        self.answered, self.start, self.distance = torch.zeros_like(self.answered), self.rules.start, 0.0

    def __call__(self, log_p: Tensor, distances: Tensor | None = None) -> Judged:
        """Take in the answers to a batch, log-probabilities [B, C], and correct them.

        A distance says how far an image is from the sources, from 0 to 1; [B].
        """
        own = log_p.detach().double().cpu().log_softmax(1)  # rounding aside, they are normalised already
        p = own.exp()
        steps = [1] * len(p) if self.rules.ordered else [len(p)]
        far = np.full(len(p), math.inf) if distances is None else distances.detach().double().cpu().numpy()
        means, pulls, rho, kappa = self.take_in(p, far, steps)
        base = self.base(means, pulls)
        likelihood = own - means.log()
        voted = self.vote(likelihood, base, kappa, steps)
        corrected, posterior = ((likelihood + b.log()).log_softmax(1).to(log_p) for b in (base, voted))
        return Judged(corrected, posterior, rho, kappa, voted[-1])

    def base(self, means: Tensor, pulls: Tensor) -> Tensor:
        """Return b, the prior without neighbours, for each mean answer [B, C] and pull [B]; [B, C]."""
        pull = pulls.float().unsqueeze(1)
        prior = prior_from_confusions(self.confusions, means.float(), pull, self.usual.float()).double()
        bayes = prior * (prior @ self.confusions.double()) / torch.from_numpy(self.expected)
        found = means ** (1 - self.rules.correction) * bayes**self.rules.correction
        return found / found.sum(1, keepdim=True)

    def bias(self) -> Tensor:
        """Return the present correction of log-probabilities without neighbours, log b − log ḡ, [C]."""
        answered = self.answered.numpy()
        images = float(answered.sum()) + self.start
        mean = torch.from_numpy((answered + self.start * self.expected) / images)
        return self.base(mean[None], torch.tensor([self.pull(images)]))[0].log() - mean.log()

    def pull(self, images: float) -> float:
        """Return the weight of the usual classes in π̂. The images that ḡ starts with have the distance 0."""
        return min(self.rules.pull, self.rules.rise * self.distance / images)

    def take_in(self, p: Tensor, far: np.ndarray, steps: list[int]) -> tuple[Tensor, ...]:
        """Return ḡ [B, C], the pull [B], ρ [B] and κ [B] at each image; the image itself is included."""
        means, pulls, rhos, kappas, at = np.empty(p.shape), *np.empty((3, len(p))), 0
        rows_of, answered, previous = p.numpy(), self.answered.numpy(), self.previous.numpy()
        total = float(answered.sum())  # images that the sum holds
        for n in steps:
            rows = rows_of[at : at + n]
            now, kept = rows[0] if n == 1 else rows.mean(0), (1 - 1 / self.rules.memory) ** n
            if total > 0:
                alike, chance = float(now @ previous), float(now @ answered) / total
                new = (1.0, 1.0, alike - chance, (alike - chance) ** 2, alike, chance)
                fading = (kept, kept**2, kept, kept, kept, kept)
                self.likeness = tuple(f * old + more for f, old, more in zip(fading, self.likeness, new))
            answered, previous, self.start = kept * answered + n * now, now, kept * self.start
            total, here = kept * total + n, slice(at, at + n)
            self.distance = kept * self.distance + float(far[here].sum())
            means[here] = (answered + self.start * self.expected) / (total + self.start)
            pulls[here], rhos[here], kappas[here] = self.pull(total + self.start), self.rho, self.kappa
            at += n
        self.answered, self.previous = torch.from_numpy(answered), torch.from_numpy(previous.copy())
        return (*(torch.from_numpy(found) for found in (means, pulls, rhos, kappas)),)

    @property
    def rho(self) -> float:
        """Return how many times as alike as chance neighbours are; about 1 in random order."""
        alike, chance = self.likeness[4:]
        return alike / chance if chance > 0 else 1.0

    @property
    def kappa(self) -> float:
        """Return the weight of the neighbours: 0 if their likeness may be chance, 1 if it cannot be."""
        weight, squared, delta, delta_squared = self.likeness[:4]
        if not self.rules.neighbours or weight == 0:
            return 0.0
        n, mean = weight**2 / squared, delta / weight
        variance = max(delta_squared / weight - mean**2, 0.0) + NOISE
        z = mean / (math.sqrt(variance / n) * (1 + 4 / n))  # wider while few images are known
        return min(max((z - self.rules.low) / (self.rules.high - self.rules.low), 0.0), 1.0)

    def vote(self, likelihood: Tensor, base: Tensor, kappa: Tensor, steps: list[int]) -> Tensor:
        """Return the prior in use at each image, κ·v + (1 − κ)·b, [B, C]; the chains take the images in."""
        found, at = np.empty(base.shape), 0
        like = (likelihood - likelihood.amax(1, keepdim=True)).exp().numpy()
        chains, evidence, stays = self.chains.numpy(), self.evidence.numpy(), self.stays
        bases, kappas = base.numpy(), kappa.numpy()[:, None]
        for n in steps:
            here = slice(at, at + n)
            b, k = bases[here], kappas[here]
            predicted = stays * chains[:, None] + (1 - stays) * b  # [K, n, C]
            if k.any():
                weights = np.exp(evidence - evidence.max())[:, None, None]
                found[here] = k * (weights * predicted).sum(0) / weights.sum() + (1 - k) * b
            else:
                found[here] = b
            joint = predicted * like[here]
            total = joint.sum(2, keepdims=True)
            evidence = (1 - 1 / self.rules.memory) ** n * evidence + np.log(total).sum((1, 2))
            shares = joint / total
            chains = (1 - LEAK) * (shares[:, 0] if n == 1 else shares.mean(1)) + LEAK / self.classes
            at += n
        self.chains, self.evidence = torch.from_numpy(chains.copy()), torch.from_numpy(evidence.copy())
        return torch.from_numpy(found)

    def state_dict(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name).clone() for name in STATE}
        numbers = {"numbers": [self.start, *self.likeness], "distance": self.distance}
        return {**tensors, **{name: torch.tensor(of, dtype=torch.double) for name, of in numbers.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in STATE:
            setattr(self, name, state[name].clone())
        self.start, *likeness = state["numbers"].tolist()
        self.likeness, self.distance = tuple(likeness), float(state["distance"])


STATE = ("answered", "previous", "chains", "evidence")
EXPONENTS = {"equal": 0.0, "between": 0.5, "sources": 1.0}


def usual_classes(usual: str, shares: Tensor) -> Tensor:
    """Return the usual class frequencies u for the classes' shares in the sources, [C].

    >>> usual_classes("between", torch.tensor([0.8, 0.2]))
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    found: Tensor = shares.detach().double().cpu() ** EXPONENTS[usual]
    return found / found.sum()
