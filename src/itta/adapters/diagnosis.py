"""What kind of stream this is, told from a model's answers alone: are neighbours alike, and which classes come?

Our own. A correlated stream is one on which the answers to neighbouring images are more alike than chance allows; then
the neighbours vote. On any other stream, answers that the model gives too often, by what is known of its confusions,
are held back. Online estimates of the prior: Yang and Zhou, Non-stationary Data Sequence Classification Using Online
Class Priors Estimation, Pattern Recognition 2008. Correlated streams: LAME (CVPR 2022), NOTE (NeurIPS 2022), DELTA
(ICLR 2023), ROID (WACV 2024).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from itta.functional.priors import prior_from_confusions

NOISE = 1e-4  # variance that a likeness has at the least: a few equal answers prove nothing
LEAK = 1e-3  # share of every class that stays possible, however sure a chain is


@dataclass(frozen=True)
class Rules:
    """The constants of a diagnosis; `ITTAPlus.Hparams` says what they mean."""

    correction: float = 1.0
    pull: float = 0.2
    usual: Literal["equal", "sources"] = "equal"
    stays: tuple[float, ...] = (0.5, 0.95)
    low: float = 2.0
    high: float = 5.0
    memory: int = 1000
    start: float = 16.0
    ordered: bool = True
    neighbours: bool = True


class Judged(NamedTuple):
    """A batch after its diagnosis: log-probabilities [B, C] of two stages, and the diagnosis at each image [B]."""

    corrected: Tensor  # without what the model answers too often
    posterior: Tensor  # with the neighbours' vote as well
    rho: Tensor
    kappa: Tensor
    prior: Tensor  # [C], in use for the last image


class Diagnosis:
    """With p_t the answers, ḡ their running mean, π̂ the prior that explains ḡ by the model's confusions:

    δ_t = ⟨p_{t−1}, p_t⟩ − ⟨ḡ, p_t⟩, z its mean over its standard error, κ = clip((z − low)/(high − low), 0, 1),
    ρ = Σ⟨p_{t−1}, p_t⟩/Σ⟨ḡ, p_t⟩. Chains f^s of classes that stay with probability s predict s·f^s + (1 − s)·b, where
    b ∝ ḡ^(1−c)·π̂^c, c the correction; their mean, weighted by how well each s predicted so far, is v.
    The answer is log p − log ḡ + log(κ·v + (1 − κ)·b): for κ = 0, log p − c·log(ḡ/π̂).

    Images are taken one after another; where the order within a batch means nothing, the batches are.
    All of it runs on the CPU in double precision: arrays of [B, C], beside a network.
    """

    def __init__(self, classes: int, rules: Rules, known: Mapping[str, Tensor] | None = None) -> None:
        """Take along the facts about the model that its sources gave: its "mean" answers, and the classes' "prior"."""
        self.classes, self.rules, known = classes, rules, known or {}
        self.confusions = known.get("mean", torch.eye(classes)).detach().float().cpu()
        self.usual = torch.full((classes,), 1 / classes, dtype=torch.double)
        if rules.usual == "sources" and "prior" in known:
            self.usual = known["prior"].detach().double().cpu()
        self.stays = np.array(rules.stays).reshape(-1, 1, 1)
        self.reset()

    def reset(self) -> None:
        chains = len(self.rules.stays)
        self.answered = torch.zeros(self.classes, dtype=torch.double)  # fading sum of the answers
        self.start = self.rules.start  # images of the usual classes that ḡ starts with; they fade as well
        self.previous = torch.zeros(self.classes, dtype=torch.double)  # the last answer, or the last batch's mean
        self.chains = torch.full((chains, self.classes), 1 / self.classes, dtype=torch.double)
        self.evidence = torch.zeros(chains, dtype=torch.double)  # log-likelihood of each chain
        self.likeness: tuple[float, ...] = (0.0,) * 6  # Σw, Σw², Σδ, Σδ², Σ⟨p_{t−1}, p_t⟩, Σ⟨ḡ, p_t⟩

    def forget(self) -> None:
        """Forget the mean answer, as in a new domain; whether neighbours are alike stays known."""
        self.answered, self.start = torch.zeros_like(self.answered), self.rules.start

    def __call__(self, log_p: Tensor) -> Judged:
        """Take in the answers to a batch, log-probabilities [B, C], and judge them."""
        own = log_p.detach().double().cpu()
        p = own.exp()
        steps = [1] * len(p) if self.rules.ordered else [len(p)]
        means, rho, kappa = self.take_in(p, steps)
        base = self.base(means)
        likelihood = own - means.log()
        voted = self.vote(likelihood, base, kappa, steps)
        corrected, posterior = ((likelihood + b.log()).log_softmax(1).to(log_p) for b in (base, voted))
        return Judged(corrected, posterior, rho, kappa, voted[-1])

    def base(self, means: Tensor) -> Tensor:
        """b, the prior without neighbours, for each mean answer; [B, C]."""
        prior = prior_from_confusions(self.confusions, means.float(), self.rules.pull, self.usual.float()).double()
        found = means ** (1 - self.rules.correction) * prior**self.rules.correction
        return found / found.sum(1, keepdim=True)

    def bias(self) -> Tensor:
        """What is added to log-probabilities now where no neighbours vote: log b − log ḡ, [C]."""
        mean = self.mean_answer(self.answered.numpy())
        return self.base(torch.from_numpy(mean)[None])[0].log() - torch.from_numpy(mean).log()

    def mean_answer(self, answered: np.ndarray) -> np.ndarray:
        """Return ḡ, [C]: the mean of the answers and of the images that it starts with."""
        return (answered + self.start * self.usual.numpy()) / (answered.sum() + self.start)

    def take_in(self, p: Tensor, steps: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """ḡ [B, C], ρ [B] and κ [B] at each image, with the images before it and itself."""
        means, rhos, kappas, at = np.empty(p.shape), np.empty(len(p)), np.empty(len(p)), 0
        rows_of, answered, previous = p.numpy(), self.answered.numpy(), self.previous.numpy()
        for n in steps:
            rows = rows_of[at : at + n]
            now, kept = rows.mean(0), (1 - 1 / self.rules.memory) ** n
            if answered.any():
                alike, chance = float(now @ previous), float(now @ answered / answered.sum())
                new = (1.0, 1.0, alike - chance, (alike - chance) ** 2, alike, chance)
                fading = (kept, kept**2, kept, kept, kept, kept)
                self.likeness = tuple(f * old + more for f, old, more in zip(fading, self.likeness, new))
            answered, previous, self.start = kept * answered + rows.sum(0), now, kept * self.start
            means[at : at + n] = self.mean_answer(answered)
            rhos[at : at + n], kappas[at : at + n] = self.rho, self.kappa
            at += n
        self.answered, self.previous = torch.from_numpy(answered), torch.from_numpy(previous.copy())
        return torch.from_numpy(means), torch.from_numpy(rhos), torch.from_numpy(kappas)

    @property
    def rho(self) -> float:
        """How much more alike neighbours are than chance; 1 on a stream in random order."""
        alike, chance = self.likeness[4:]
        return alike / chance if chance > 0 else 1.0

    @property
    def kappa(self) -> float:
        """How far to trust that: 0 where it may be chance, 1 where it cannot be."""
        weight, squared, delta, delta_squared = self.likeness[:4]
        if not self.rules.neighbours or weight == 0:
            return 0.0
        n, mean = weight**2 / squared, delta / weight
        variance = max(delta_squared / weight - mean**2, 0.0) + NOISE
        z = mean / (math.sqrt(variance / n) * (1 + 4 / n))  # wider where few images are known
        return min(max((z - self.rules.low) / (self.rules.high - self.rules.low), 0.0), 1.0)

    def vote(self, likelihood: Tensor, base: Tensor, kappa: Tensor, steps: list[int]) -> Tensor:
        """The prior in use at each image, [B, C]: κ of what the chains predict, the rest of the base."""
        found, at = np.empty(base.shape), 0
        like = (likelihood - likelihood.amax(1, keepdim=True)).exp().numpy()
        chains, evidence, stays = self.chains.numpy(), self.evidence.numpy(), self.stays
        for n in steps:
            here = slice(at, at + n)
            b, k = base.numpy()[here], kappa.numpy()[here, None]
            predicted = stays * chains[:, None] + (1 - stays) * b  # [K, n, C]
            weights = np.exp(evidence - evidence.max())
            found[here] = k * np.tensordot(weights / weights.sum(), predicted, 1) + (1 - k) * b
            joint = predicted * like[here]
            total = joint.sum(2, keepdims=True)
            evidence = (1 - 1 / self.rules.memory) ** n * evidence + np.log(total).sum((1, 2))
            chains = (1 - LEAK) * (joint / total).mean(1) + LEAK / self.classes
            at += n
        self.chains, self.evidence = torch.from_numpy(chains.copy()), torch.from_numpy(evidence.copy())
        return torch.from_numpy(found)

    def state_dict(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name).clone() for name in STATE}
        return {**tensors, "numbers": torch.tensor([self.start, *self.likeness], dtype=torch.double)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in STATE:
            setattr(self, name, state[name].clone())
        self.start, *likeness = state["numbers"].tolist()
        self.likeness = tuple(likeness)


STATE = ("answered", "previous", "chains", "evidence")
