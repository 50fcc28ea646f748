"""The parts that all estimators share: the answers to unlabelled images, and the form of an estimator."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from itta.models.stand_ins import StandIns


@dataclass(frozen=True)
class Evidence:
    """The answers to the images of a target: all that an estimator sees."""

    before: Tensor  # [N, C], the trained model's probabilities, softened by its temperature
    after: Tensor  # [N], the classes that the adapter answers
    opinions: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [N, C], probabilities of other answers
    confusions: Tensor | None = None  # [C, C], the mean answer to held-out images of each class
    neighbours: float | None = None  # mean probability that similar images of the target give to the answers
    early: Tensor | None = None  # [N, C], scores of the classes by the model's early reader
    by_itta_plus: bool = True  # whether ``after`` is by itta+, whose gains on the stand-ins are known

    @property
    def answers(self) -> Tensor:
        """The classes that the trained model answers, [N]."""
        return self.before.argmax(1)

    @property
    def belief(self) -> Tensor:
        """The mean of the trained model's answer and all other opinions, [N, C]."""
        return torch.stack([self.before, *self.opinions.values()]).mean(0)

    def part(self, rows: Tensor) -> "Evidence":
        """The answers to some of the images."""
        opinions = {name: p[rows] for name, p in self.opinions.items()}
        early = None if self.early is None else self.early[rows]
        return replace(self, before=self.before[rows], after=self.after[rows], opinions=opinions, early=early)

    def __len__(self) -> int:
        return len(self.before)


class Estimator:
    """A way to tell the accuracy of a trained model on a target from unlabelled answers."""

    name: ClassVar[str]
    paper: ClassVar[str]
    needs_stand_ins: ClassVar[bool] = False  # or at least the held-out images among them
    needs_opinions: ClassVar[bool] = False

    def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
        """Estimate the share of right answers of the trained model."""
        raise NotImplementedError

    def can_use(self, evidence: Evidence, known: StandIns | None) -> bool:
        """Whether everything that the estimator needs is there."""
        return not (self.needs_stand_ins and known is None) and not (self.needs_opinions and not evidence.opinions)
