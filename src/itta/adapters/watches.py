"""The watches of a guard. The table `WATCHES` is the registry: a new watch is a function and a line.

Online adapters fail in known ways: features shrink or grow without end; all predictions become certain, or equal;
answers drift away from the trained model's, or are probably worse; the loss rises; numbers are not finite. Each watch
compares the adapter with the referee on the same images, so no limit depends on the data. The referee is the trained
model with the diagnosis of the stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from itta.adapters.estimated_gain import Tally
from itta.functional.entropy import effective_classes


class Trip(NamedTuple):
    watch: str
    value: float
    limit: float


@dataclass(frozen=True)
class Watched:
    """What is known after a batch."""

    finite: bool  # the adapter's answers, the trained model's, and the loss
    debt: float  # expected loss of right answers so far, beyond the allowed loss
    means: "Means"
    tally: Tally  # of the changed answers
    hp: Any  # `Guard.Hparams`


def finite(seen: Watched) -> Trip | None:
    return None if seen.finite else Trip("finite", float("nan"), 0.0)


def cost(seen: Watched) -> Trip | None:
    return Trip("cost", seen.debt, seen.hp.budget) if seen.debt > seen.hp.budget else None


def feature_norm(seen: Watched) -> Trip | None:
    norm, limit = seen.means["norm"], seen.hp.max_norm_ratio
    return None if 1 / limit <= norm <= limit else Trip("feature norm", norm, limit)


def sureness(seen: Watched) -> Trip | None:
    ratio = seen.means["entropy"] / max(seen.means["referee entropy"], 1e-3)  # a trained model may be certain itself
    limit = seen.hp.min_entropy_ratio
    return Trip("entropy", ratio, limit) if seen.means.full and ratio < limit else None


def class_balance(seen: Watched) -> Trip | None:
    balance, limit = seen.means.balance, seen.hp.min_balance
    return Trip("class balance", balance, limit) if seen.means.full and balance < limit else None


def rising_loss(seen: Watched) -> Trip | None:
    loss, usual, limit = seen.means["loss"], seen.means.long_loss, seen.hp.max_loss_ratio
    return Trip("loss", loss / usual, limit) if seen.means.full and loss > limit * usual > 0 else None


def estimated_gain(seen: Watched) -> Trip | None:
    chance, limit = seen.tally.chance_of_loss, seen.hp.max_loss_chance
    return Trip("estimated gain", chance, limit) if chance > limit else None


WATCHES: dict[str, Callable[[Watched], Trip | None]] = {  # the first that trips counts
    "finite": finite,
    "cost": cost,
    "feature norm": feature_norm,
    "entropy": sureness,
    "class balance": class_balance,
    "loss": rising_loss,
    "estimated gain": estimated_gain,
}


class Means:
    """Running means of the watched quantities over the latest images; they are means from the first image on.

    The sums are NumPy's: many of them are read one by one after each batch.
    """

    names = ("norm", "loss", "entropy", "referee entropy", "weight")  # and each class's share, and the referee's

    def __init__(self, memory: int, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.memory = memory
        self.sums, self.long = (tensors[k].numpy().copy() if tensors else np.zeros(0) for k in ("sums", "long"))

    def add(self, logits: Tensor, referee: Tensor, loss: float, norm: float) -> None:
        log_p = torch.stack([logits, referee]).detach().double().cpu().log_softmax(2)
        p = log_p.exp()
        entropies, shares = -(p * log_p).sum(2).mean(1), p.mean(1)
        now = np.concatenate([[norm, loss], entropies.numpy(), [1.0], shares.flatten().numpy()])
        share = 1 - (1 - 1 / self.memory) ** len(logits)
        before = (self.sums, self.long) if len(self.sums) else (0.0, 0.0)
        self.sums, self.long = (sums + part * (now - sums) for sums, part in zip(before, (share, share / 10)))

    def __getitem__(self, name: str) -> float:
        return self.of(self.sums, name)

    def of(self, sums: np.ndarray, name: str) -> float:
        return float(sums[self.names.index(name)] / sums[self.names.index("weight")])

    @property
    def full(self) -> bool:
        """Tell whether the means cover enough images to be used."""
        return len(self.sums) > 0 and float(self.sums[self.names.index("weight")]) > 0.5

    @property
    def balance(self) -> float:
        """Return the effective number of predicted classes, as a share of the referee's."""
        own, other = (p / p.sum() for p in np.split(self.sums[len(self.names) :], 2))
        return effective_classes(own) / effective_classes(other)

    @property
    def long_loss(self) -> float:
        return self.of(self.long, "loss")

    def tensors(self) -> dict[str, Tensor]:
        return {"sums": torch.from_numpy(self.sums.copy()), "long": torch.from_numpy(self.long.copy())}


def excess_cost(logits: Tensor, reference: Tensor, referee: Tensor, share: float) -> float:
    """Return the right answers that the referee expects to lose if these answers replace the trained model's.

    A share of the referee's doubt in its own answers is allowed, and subtracted.

    >>> sure = torch.tensor([[0.9, 0.1]]).log()
    >>> round(excess_cost(sure.flip(1), sure, sure, share=0.5), 6)  # loses 0.8 for a doubt of 0.1
    0.75
    """
    q = referee.double().softmax(1)
    trained, own = (q.gather(1, of.argmax(1, keepdim=True))[:, 0] for of in (reference, logits))
    return float((trained - own - share * (1 - q.amax(1))).sum())


def spread(logits: Tensor) -> Tensor:
    """Return the mean deviation of the logits of an image; the logits of some methods have a scale of their own."""
    return logits.detach().double().std(1).mean().clamp(min=1e-6)
